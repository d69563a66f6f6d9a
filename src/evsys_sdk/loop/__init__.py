"""The loop around experiments: campaigns, which hold a question, a budget and a rule to stop by."""
