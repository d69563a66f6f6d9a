"""Taking what clients send: decoded, checked, stored exactly once."""
