"""Room 6: the recipes. Each defines `build_batch` and nothing else."""
