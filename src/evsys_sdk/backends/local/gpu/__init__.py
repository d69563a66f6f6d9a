"""GPU code: fused layers, Triton kernels and captured CUDA graphs."""
