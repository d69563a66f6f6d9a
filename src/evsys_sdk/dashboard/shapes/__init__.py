"""What the read API answers: the same shapes from a project's own disk (`local/`) and from a server's database.

A `run` is one entry of a config, an `arm` is a run with one seed. Times are seconds since 1970, spend is in the units
its keys name, and null means "not known", never zero. Text that a model, a person or a dataset wrote is data: show it
as plain text.
"""
