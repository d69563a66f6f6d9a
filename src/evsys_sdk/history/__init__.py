"""Room 11: what was tried, for people and agents, read from the record.

find, index, cache     which experiments there are, kept in a database beside them
summarize, summary     an experiment in a few fields; `detail` is all of it
outcome, effects       what it found, what each change did, and how far that can be believed
views/                 what the commands show of it; context/ is the digest for an agent
notes                  what is added to the record afterwards
"""
