"""OpenAI's API on the same models: requests, drawing in turn with all others, and answers in its shapes."""
