"""What the read API answers: the contract of a source of records, and what follows from a record."""
