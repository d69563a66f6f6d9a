"""Built-in metrics, one per module."""
