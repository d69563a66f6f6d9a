"""The closed loop (traces, training rounds, deployments), and campaigns."""
