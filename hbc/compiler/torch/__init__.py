"""The PyTorch backends: a graph as an `nn.Module` (program.py), each operator by its rule (rules.py).

eager.py compiles for the backend "torch", script.py for "torchscript" (the same module, traced by trace.py).
"""
