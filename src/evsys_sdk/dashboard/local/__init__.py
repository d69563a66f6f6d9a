"""The records on this disk as a data source of the read API; nothing is uploaded."""
