"""Tinker's protocol: routes, JSON and protobuf requests, and responses."""
