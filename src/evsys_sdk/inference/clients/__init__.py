"""Built-in inference clients, one per module; those that sample tokens themselves share `sampled`."""
