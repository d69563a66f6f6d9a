"""What people and agents are shown of the history: each view builds its data once, as text and as JSON."""
