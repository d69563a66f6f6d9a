"""The dashboard's server: takes what clients send, keeps it, and answers the read API of `dashboard/API.md`."""
