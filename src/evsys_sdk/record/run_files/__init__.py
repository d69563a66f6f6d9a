"""What one run writes while it continues, a module for each kind of file."""
