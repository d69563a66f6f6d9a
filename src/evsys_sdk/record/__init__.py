"""Room 9: what happened, on disk and on the screen: log stores, callbacks, journal, history."""
