"""The dashboard server: stores the records of clients, and serves the read API of `dashboard/API.md`."""
