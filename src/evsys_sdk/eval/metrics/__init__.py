"""Built-in metrics of rewards, passes and cost."""
