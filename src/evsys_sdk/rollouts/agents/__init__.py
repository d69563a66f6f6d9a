"""Built-in agents, one per module."""
