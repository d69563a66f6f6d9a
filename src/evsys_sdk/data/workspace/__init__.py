"""The workspace of a project (`.evsys/`): rows that were pulled, added or derived, kept by what is in them.

workspace        finds rows by name, pulls, adds and derives them
dataset_source   where they are pulled from; local_folder is the built-in one, the dashboard another
row_cache        the files, with their manifests; inventory lists and verifies them
reference        `name@version` and ids
"""
