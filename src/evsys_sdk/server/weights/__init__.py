"""Weights: the backend that has them, saved ones by their public names, and names that others decide."""
