"""Verbs of data: datasets, benchmarks, traces of systems in use, and whether one leaked into the other."""
