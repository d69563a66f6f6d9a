"""The model eval harness: does a model answer requests with the right slug, or with one that counts as the same?

In the order of the flow:

dataset      JSONL -> rows with a conversation and a target
prompts      what a model is asked, and how Qwen models want to read it
evaluate     the whole of it; `asking` asks, with retries, and `journal` keeps every answer
extraction   the slug in an answer
aliases      which slugs count as the same
scoring      answers -> matches
summary      matches -> numbers with their errors; `report` writes them down

It knows nothing of tasks, verifiers or sandboxes; those belong to benchmarks.
"""
