"""Traces: conversations of deployed systems, stored without secrets."""
