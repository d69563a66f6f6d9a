"""What was tried, for people and agents: queries over views of experiments.

attention              what needs a person: one list for the command line, the page and alerts
history                the reading API for Python: `from evsys_sdk import History`
find, index, cache     which experiments there are; their views are kept in a database next to them
query                  filters, order and pages of views: of this disk, and of a dashboard's database
detail, pairs, effects one experiment with its files; two compared task by task; what each change did
views/                 what the commands show; context/ is the digest for an agent
notes                  what is added to the record afterwards
"""
