"""The PyTorch backends. A graph becomes an `nn.Module` (program.py); a rule for each operator says how PyTorch computes it (rules.py).

eager.py compiles for the backend "torch", script.py for "torchscript" (the same module, traced by trace.py).
"""
