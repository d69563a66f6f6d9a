"""Verbs of a project: make one, see what its configs can name, and what this machine and its backends can do."""
