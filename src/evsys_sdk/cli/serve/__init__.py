"""Verbs of servers: models and the dashboard."""
