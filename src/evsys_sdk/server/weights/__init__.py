"""Weights: the backend, saved weights by public name, and the catalog of other names."""
