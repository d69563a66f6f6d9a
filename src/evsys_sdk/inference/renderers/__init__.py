"""The built-in renderers: the tokenizer's own chat template, and those of tinker-cookbook."""
