"""The built-in transforms, one module each; the file name is the `kind`. `transform.py` says what they are made of."""
