"""The built-in environments, one file per registered name; `none` stands next to the contract in environment.py."""
