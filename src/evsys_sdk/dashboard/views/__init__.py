"""The answers of the read API: the interface of a data source, and the views computed from it."""
