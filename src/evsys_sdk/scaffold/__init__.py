"""Templates of projects and experiments, and the skills for coding agents."""
