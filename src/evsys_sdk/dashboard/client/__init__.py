"""What a run reports, written down here and sent from here; and what is asked of a dashboard in return."""
