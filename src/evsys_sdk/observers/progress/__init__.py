"""The board of running arms, and its number formats."""
