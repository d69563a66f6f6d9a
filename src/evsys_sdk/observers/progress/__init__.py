"""How a run shows itself while it runs: what is known of it, as plain lines or as a live display."""
