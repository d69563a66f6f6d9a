"""Room 12: who watches a run: callbacks, log stores, progress on the screen."""
