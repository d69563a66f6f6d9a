"""The cost and the statistical power of an experiment, estimated before anything is spent."""
