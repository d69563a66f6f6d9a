"""Campaigns: a question, a budget, stopping rules, and the progress of their experiments."""
