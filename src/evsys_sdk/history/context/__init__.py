"""What an agent has to know before it writes the next experiment: questions, claims, failures, within a budget.

sections   the digest, section by section
questions  one model, one metric, one set of tasks: the best, what each change did, what is untried; claims, failures
digest     statements that must fit a number of tokens
"""
