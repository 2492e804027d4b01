"""Calls that hbc does not take: the errors for those that Hummingbird takes say how hbc does it.
docs/from-hummingbird.md has the whole of its interface."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from hbc.errors import meant

Function = TypeVar("Function", bound=Callable[..., object])

GUIDE = "docs/from-hummingbird.md has all of Hummingbird's calls and options."

OPTIONS = {
    "tree_implementation": "pass strategy=, with the same names",
    "batch_size": "pass batch_size=",
    "n_threads": "pass threads=",
    "onnx_target_opset": "pass opset= to CompiledModel.export",
    "container": "leave it out: CompiledModel.module is the bare nn.Module",
    "tree_op_precision_dtype": "leave it out: hbc computes in the dtype that the source does",
    "max_string_length": "leave it out: strings may have any length",
    "tvm_pad_prediction_inputs": "leave it out: calls may have any number of rows",
    "tvm_max_fuse_depth": "leave it out: hbc has kernels of its own",
    "input_names": "leave it out: the inputs of exported files have fixed names, or with export(columns=True) those of the columns",
    "output_names": "leave it out: the outputs of exported files have the names of the methods",
    "onnx_model_name": "leave it out: exported files have no such name",
    "test_input": "pass the sample as X=",
    "remainder_size": "leave it out: calls may have any number of rows",
    "n_features": "leave it out: the model knows it, or a sample as X= tells it",
    "n_inputs": "leave it out: the model knows it, or a sample as X= tells it",
}
"""Key of `extra_config` → what to do instead."""

NAMES = {
    "convert_batch": "Call hbc.convert: a compiled model takes any number of rows.",
    "supported": "Call hbc.supported_operators().",
    "constants": "Options are keyword arguments of hbc.convert.",
    "TorchContainer": "Call hbc.load.",
    "TVMContainer": "Call hbc.load.",
    "ONNXContainer": "Call hbc.load.",
}
"""Name in `hummingbird.ml` that hbc does not have → what to do instead."""


def answered(function: Function) -> Function:
    """A function of `hbc` which raises TypeError for a keyword that it does not have, with the one that was probably meant. For
    Hummingbird's `extra_config` (the fifth argument of `convert`) and `test_input`, and for its options of `load`, the error says
    the hbc way."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> object:
        name = f"hbc.{function.__name__}"
        if "test_input" in options:
            raise TypeError(f"{name} has no argument test_input: pass the sample as X=, or as the third argument. {GUIDE}")
        if "extra_config" in options or (name == "hbc.convert" and len(arguments) == 5):
            config = options.get("extra_config", arguments[-1])
            keys = list(config) if isinstance(config, dict) else []
            ways = "".join(f"\n  - {key}: {OPTIONS.get(key, 'hbc has no such option; leave it out')}" for key in keys)
            raise TypeError(f"{name} has no argument extra_config: its options are keyword arguments. {GUIDE}{ways}")
        for option in options:
            if name == "hbc.load" and option in ("digest", "override_flag"):
                raise TypeError(
                    f"{name} has no argument {option}: hbc reads no file of Hummingbird, so convert the source again. {GUIDE}"
                )
            if option not in parameters:
                known = list(parameters)
                raise TypeError(f"{name} has no argument {option!r}{meant(option, known)}; it has {', '.join(known)}")
        return function(*arguments, **options)

    return cast(Function, call)
