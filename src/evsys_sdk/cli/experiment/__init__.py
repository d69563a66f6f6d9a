"""Verbs of an experiment: validate, plan, run, follow and evaluate."""
