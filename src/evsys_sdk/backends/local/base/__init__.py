"""The frozen model: loading, checks, adapters, and execution over packed rows."""
