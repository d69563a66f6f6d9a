"""Verbs of a project: create it, list extensions, and test backends and sandboxes."""
