"""The closed loop: production becomes data, decides when to learn again, and campaigns hold what is asked."""
