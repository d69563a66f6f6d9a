"""The built-in transforms, by subject; base classes are in `transform.py`."""
