"""The results of kernels, compared with ggml's CPU code: test-backend-ops on a simulated card."""
