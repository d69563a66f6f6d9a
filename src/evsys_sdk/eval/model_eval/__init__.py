"""`evsys eval model`: rows -> prompts -> answers -> the slug that each names -> how often it is the right one.

evaluate   rows become tasks, and the engine of all benchmarks asks them
prompts    what a model is asked
slugs      which slug an answer names, and which ones count as the same
summary    the numbers, each with its error, and the page that shows them
"""
