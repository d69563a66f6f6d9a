"""The digest of all experiments for an agent: questions, claims and failures, within a token budget.

sections   the digest, section by section
questions  one model, one metric, one set of tasks: the best, what each change did, what is untried; claims, failures
digest     fits statements into a token budget
"""
