"""What a project keeps in its `.evsys/` folder about everything that happens in it."""
