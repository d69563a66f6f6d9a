"""Room 2: the format of what happens, and its one reader. Standard library only."""
