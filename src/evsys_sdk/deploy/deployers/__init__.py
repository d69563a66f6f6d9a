"""The built-in deployers, one a file, named for their kind."""
