"""Room 14: what happened, shared. `client.py` sends it, `server/` keeps it, `local.py` reads what is on this disk."""
