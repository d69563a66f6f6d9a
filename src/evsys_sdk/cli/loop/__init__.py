"""Verbs of closed loops, campaigns and deployments."""
