"""Verbs of the network: models served to clients, and the dashboard with what is sent to it."""
