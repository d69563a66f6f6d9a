"""What is known about one experiment, worked out once from its record.

    view(record)            the `ExperimentView`: question, runs, arms, spend, state, verdict, flags, notes
    model.py                its fields; a new field is one line there and one in build.py
    question.py             the `Question` that two experiments must share before their scores are compared
    outcome.py              what each run scored, from the conclusion or from the scores on record
    task_scores.py          scores by task, read when they are asked for

Everything that shows or compares experiments reads views: the command line, the dashboard, context, campaigns and
gate. The audit alone reads raw files.
"""
