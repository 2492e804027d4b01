"""What an estimator rejects, as an operator: it changes nothing in the graph. `optimizer/checks.py` carries these requirements
back to the columns of the model's input, where the runtime tests them before anything is computed."""

from __future__ import annotations

from hbc.ir.graph import Node, Operator, operator
from hbc.ir.types import Array, TensorType


@operator
class Check(Operator):
    """y = x, where the source library would have rejected an x with NaN (unless `allow_nan`), with ±inf (unless `allow_inf`),
    with |x| > limit, or with fewer than `min_rows` rows. `owner` names the estimator for the message
    (sklearn.utils.check_array)."""

    owner: str
    allow_nan: bool = False
    allow_inf: bool = False
    limit: float = float("inf")
    min_rows: int = 1

    columnwise = True

    def infer(self, x: TensorType) -> TensorType:
        return x

    def evaluate(self, x: Array) -> Array:
        return x

    def lower(self, x: Node) -> Node:
        return x
