"""Built-in agents, one per module; that of Harbor is in `harbor/native.py`."""
