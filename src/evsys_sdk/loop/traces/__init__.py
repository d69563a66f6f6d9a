"""Traces: conversations of systems in use, read from what they leave behind and kept without secrets."""
