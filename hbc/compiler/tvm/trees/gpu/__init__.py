"""The tree kernels for a GPU that share trees between the threads of a block. Importing this package registers them."""

from hbc.compiler.tvm.trees.gpu import far_links as far_links
from hbc.compiler.tvm.trees.gpu import levels as levels
from hbc.compiler.tvm.trees.gpu import links as links
from hbc.compiler.tvm.trees.gpu import wide_links as wide_links
