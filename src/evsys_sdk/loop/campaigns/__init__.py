"""Campaigns: a question, a budget and a rule to stop by, and the experiments under them."""
