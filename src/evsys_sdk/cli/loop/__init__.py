"""Verbs of a system in use: the closed loop, campaigns of agents, and what is shipped and taken back."""
