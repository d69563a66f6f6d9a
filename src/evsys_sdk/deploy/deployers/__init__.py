"""The built-in deployers; a file is named for its kind, or for what its kinds ship."""
