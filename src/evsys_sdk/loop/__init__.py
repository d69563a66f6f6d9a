"""The closed loop: what happened in production becomes data, and decides when to learn again; campaigns in between."""
