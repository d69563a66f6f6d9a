"""What only a GPU has: fused layers, kernels of our own, and captured graphs."""
