"""The client: record what a run reports, send it to a dashboard, and read requests from the dashboard."""
