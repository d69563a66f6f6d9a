"""What an experiment will take and what it can tell, worked out before anything is spent."""
