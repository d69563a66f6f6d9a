"""The built-in data stores, one module each; the file name is the `kind`."""
