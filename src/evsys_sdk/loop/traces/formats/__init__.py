"""How others write their traces, one format a file."""
