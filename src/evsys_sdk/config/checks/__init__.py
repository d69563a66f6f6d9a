"""The problems of a config, with their places and remedies."""
