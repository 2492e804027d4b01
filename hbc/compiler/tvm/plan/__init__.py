"""What is computed where in a method, before any code: values, memory, blocks. Knows no TVM."""
