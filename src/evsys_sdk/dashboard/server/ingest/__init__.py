"""Ingest the records of clients: decode, check, and store each exactly once."""
