"""The routes: the read API, the API of clients, sessions and keys."""
