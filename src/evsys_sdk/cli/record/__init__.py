"""Verbs that read what was recorded: list, show, compare, digest, annotate, conclude again, audit."""
