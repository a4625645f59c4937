"""What the interpreter's tests share: its C API, exact arithmetic, small kernels, references."""
