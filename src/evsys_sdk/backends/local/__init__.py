"""The `local` backend: LoRA training and sampling in this process, on torch and transformers."""
