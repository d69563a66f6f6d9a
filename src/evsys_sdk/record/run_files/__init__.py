"""The files of a run, one module per kind of file."""
