"""The output of history commands, as text and as JSON."""
