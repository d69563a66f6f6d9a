"""Samples that grow together, and what was read before them."""
