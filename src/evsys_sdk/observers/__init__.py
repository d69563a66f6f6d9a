"""Observers of a run: callbacks, log stores and progress displays."""
