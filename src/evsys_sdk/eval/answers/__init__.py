"""What an answer says: the part that is the answer, and the texts, numbers, JSON, tool calls and slugs in it."""
