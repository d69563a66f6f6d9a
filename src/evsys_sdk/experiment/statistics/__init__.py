"""Statistics for comparisons of runs: pure functions of arrays."""
