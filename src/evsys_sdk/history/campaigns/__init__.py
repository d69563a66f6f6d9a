"""Campaigns: a question, a budget and a rule to stop by, and where the experiments under them stand."""
