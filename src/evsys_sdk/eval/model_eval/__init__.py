"""`evsys eval model`: rows -> prompts -> answers -> predicted slugs -> scores.

evaluate   rows become tasks of one benchmark
prompts    prompts and Qwen's chat format
slugs      the slug in an answer, and aliases of the target
summary    the scores with standard errors, and their Markdown page
"""
