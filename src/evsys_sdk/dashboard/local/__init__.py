"""The record on this disk as a source of the read API: nothing is uploaded, everything is followed."""
