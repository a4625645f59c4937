"""Which nvcc compiles a tree's quantization kernels right: computed on a CPU, kept as a table.

Gets a source tree and nvcc's releases; gives a row of errors for each release.  ``pipeline`` makes
tables, ``plan.lint`` and ``site`` read them.
"""
