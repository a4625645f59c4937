"""A simulated card: the engine's own CUDA code runs on a machine without a GPU."""
