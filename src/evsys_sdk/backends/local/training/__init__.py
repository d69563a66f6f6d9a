"""Forward and backward passes that accumulate gradients, and optimizer steps."""
