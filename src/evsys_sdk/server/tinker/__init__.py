"""Tinker's protocol: which path is answered by what, requests as JSON and as protobuf, and their answers."""
