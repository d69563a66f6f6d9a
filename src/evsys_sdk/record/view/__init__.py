"""The derived state of one experiment, computed from its record in one place.

    view(record)            the `ExperimentView`: question, runs, arms, spend, state, verdict, flags, notes
    model.py                its fields; a new field is one line there and one in build.py
    question.py             the `Question` that two experiments must share before their scores are compared
    outcome.py              the score of each run, from the conclusion or from the recorded scores
    task_scores.py          scores by task, read on demand

The command line, the dashboard, context, campaigns and gates read views. Only the audit reads raw files.
"""
