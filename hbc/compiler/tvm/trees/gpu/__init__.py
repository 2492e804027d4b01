"""The tree kernels for a GPU that share trees between the threads of a block."""
