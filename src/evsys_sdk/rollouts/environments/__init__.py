"""The built-in environments, one file per registered name."""
