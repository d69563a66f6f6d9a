"""What is wrong with a config, told with its place and what to do about it."""
