"""The routes, by who asks: pages and programs that read, clients that send, people who sign in."""
