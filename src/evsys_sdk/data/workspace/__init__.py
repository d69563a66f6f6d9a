"""The workspace of a project (`.evsys/`): pulled, added and derived rows, addressed by content.

workspace        finds rows by name; pulls, adds and derives rows
dataset_source   sources of rows; local_folder is the built-in one, the dashboard another
row_cache        the files with their manifests; inventory lists and verifies them
reference        `name@version` and ids
"""
