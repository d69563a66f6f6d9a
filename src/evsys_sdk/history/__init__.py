"""The history of experiments: queries over their views, for people and agents.

attention              what needs a person, for the command line, the page and alerts
history                the reading API for Python: `from evsys_sdk import History`
find, index, cache     find experiments; their views are cached in a database next to them
query                  filters, order and pages of views: of this disk, and of a dashboard's database
detail, pairs, effects one experiment with its files; two compared task by task; what each change did
views/                 the output of the commands; context/ is the digest for an agent
notes                  notes, tags and marks that are added to a record
"""
