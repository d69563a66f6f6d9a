"""Built-in agents, one per module; Harbor's is in `harbor/native.py`."""
