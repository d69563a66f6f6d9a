"""The database: its tables, the one thread that writes, and the records in it as a source of the read API."""
