"""`evsys eval model`: rows -> prompts -> answers -> the slug that each names -> how often it is the right one."""
