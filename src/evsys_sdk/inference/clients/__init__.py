"""Built-in inference clients, one per module."""
