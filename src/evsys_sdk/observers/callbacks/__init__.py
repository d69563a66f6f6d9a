"""The built-in callbacks; the file name is the kind."""
