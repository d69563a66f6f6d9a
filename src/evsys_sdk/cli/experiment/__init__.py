"""Verbs of an experiment, from its config to its scores: check, estimate, vary, run, follow, evaluate."""
