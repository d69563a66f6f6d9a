"""What was tried, for people and agents: queries over views of experiments.

history                the reading API for Python: `from evsys_sdk import History`
find, index, cache     which experiments there are; their views are kept in a database next to them
detail, pairs, effects one experiment with its files; two compared task by task; what each change did
views/                 what the commands show; context/ is the digest for an agent
notes                  what is added to the record afterwards
"""
