"""Built-in metrics: of rewards and answers, of passes, of what they cost."""
