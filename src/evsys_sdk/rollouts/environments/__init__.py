"""The built-in environments, one file per registered name; `none` stands beside the contract in environment.py."""
