"""The board of running arms, and how numbers are written on it."""
