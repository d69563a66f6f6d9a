"""The shapes of the read API, the same for a project on this disk (`local/`) and for a server's database.

A `run` is one entry of a config, an `arm` is a run with one seed. Times are seconds since 1970, the keys of a spend
name its units, and null means "unknown", never zero. Text written by a model, a person or a dataset is data: show it as
plain text.
"""
