"""Formats of traces, one module each."""
