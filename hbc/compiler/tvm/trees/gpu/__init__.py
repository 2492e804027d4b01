"""The tree kernels for a GPU that share trees between the threads of a block. Importing this package registers them."""

from hbc.compiler.tvm.trees.gpu import kernels as kernels
