"""Room 4: policy x task -> trajectories."""
