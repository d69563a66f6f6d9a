"""The built-in transforms, by what they change. `transform.py` says what they are made of."""
