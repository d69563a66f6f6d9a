"""Built-in launchers; the file name is the kind."""
