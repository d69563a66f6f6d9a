"""Built-in verifiers, one per module."""
