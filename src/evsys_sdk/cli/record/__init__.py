"""Verbs of records: list, show, compare, digest, annotate, conclude, audit."""
