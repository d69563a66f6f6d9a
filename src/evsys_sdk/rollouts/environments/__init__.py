"""The built-in environments, one file per registered name; `none` is in environment.py."""
