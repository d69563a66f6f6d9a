"""Built-in inference clients, one per module; those that sample locally share `sampled`."""
