"""The backend `fireworks`: the adapter of `tinker`, through Fireworks' own client."""
