"""Verbs of data: datasets, benchmarks, traces and contamination."""
