"""Room 11: what was tried, for people and agents, read from the record."""
