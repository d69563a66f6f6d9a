"""Room 7: how good is it? Metrics, and the scoring of a run on rows with known targets."""
