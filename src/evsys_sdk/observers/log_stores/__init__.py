"""The built-in log stores; the file name is the kind."""
