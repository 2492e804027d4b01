"""Makes a shared library of an object file that LLVM has written, without a compiler or a linker on the user's computer."""
