"""Expressions and vector statements of TIR, and the elementary functions made of them. Knows no graph and no operator."""

from hbc.compiler.tvm.without_torch import without_torch

with without_torch():  # 1.4 s of processor time; some parts of TVM's that hbc does not use import torch
    import tvm as tvm
