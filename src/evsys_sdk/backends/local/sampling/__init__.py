"""Batched sampling with prefix caching, and scoring."""
