"""The database: the schema, the writer thread, and the stored records as a data source of the read API."""
