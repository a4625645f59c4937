"""The Python half of the simulated card: device code, kernels, models without weights, reports."""
