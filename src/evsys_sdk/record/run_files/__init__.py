"""What one run writes while it goes on, a module for each kind of file."""
