"""A small, real language model in numpy: learns by gradient, samples, saves and restores exactly."""
