"""Loads a library that `CompiledModel.export` has written, as a program without hbc would: by ctypes, and by what it says of itself."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

HOST_TARGET = {
    "kind": "llvm",
    "mtriple": "x86_64-unknown-linux-gnu",
    "mcpu": "x86-64-v3",
    "cl-opt": ["-vectorize-loops=false"],
    "mattr": ["+prefer-no-gather", "-prefer-256-bit"],
}
"""What libraries are compiled for on x86-64. A model with this target computes the same bits."""


def is_x86_64() -> bool:
    return str(tvm.target.codegen.llvm_get_system_triple()).startswith("x86_64")


class Exported:
    """The functions of a library."""

    def __init__(self, path: Path, prefix: str = "hbc") -> None:
        self.functions, self.prefix = ctypes.CDLL(str(path)), prefix
        self.about = json.loads(self.text("about"))

    def text(self, name: str, *arguments: int) -> str:
        function = self.functions[f"{self.prefix}_{name}"]
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_int64] * len(arguments)
        found = function(*arguments)
        return "" if found is None else found.decode()

    def number(self, name: str) -> int:
        function = self.functions[f"{self.prefix}_{name}"]
        function.restype = ctypes.c_int64
        return int(function())

    def results(self, method: str, rows: int) -> list[NDArray[Any]]:
        """Memory for the results of a method."""
        return [np.full((rows, *r["shape"]), 7, r["dtype"]) for r in self.about["methods"][method]]

    def inputs(self, X: NDArray[Any]) -> list[NDArray[Any]]:
        """The columns of each input."""
        taken = [X[:, entry["columns"]].astype(entry["dtype"]) for entry in self.about["inputs"]]
        return [np.ascontiguousarray(array) for array in taken]

    def call(self, method: str, inputs: list[Any], rows: int, results: list[Any], workspace: Any = None) -> int:
        """What the function returns. Arrays, addresses and None are passed as pointers."""
        function = self.functions[f"{self.prefix}_{method}{'' if workspace is None else '_with'}"]
        values = [*map(_address, inputs), ctypes.c_int64(rows), *map(_address, results)]
        return int(function(*values, *([] if workspace is None else [_address(workspace)])))

    def __call__(self, method: str, X: NDArray[Any]) -> list[NDArray[Any]]:
        """The results of a method for numbers that the model accepts."""
        results = self.results(method, len(X))
        assert self.call(method, self.inputs(X), len(X), results) == 0
        return results


def _address(value: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(value.ctypes.data if isinstance(value, np.ndarray) else value)
