"""A model as an expression of Polars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hbc.engines.worker import arrow_method
from hbc.errors import InvalidInputError, shown

if TYPE_CHECKING:
    import polars

    from hbc.runtime.model import CompiledModel


def predict(
    model: CompiledModel,
    methods: str | Sequence[str] | None = None,
    *,
    columns: Any = None,
    class_names: Sequence[str] | None = None,
) -> polars.Expr:
    """The expression that computes the model for frames and lazy frames, also in the streaming engine.

    It is a column for one column of results, and otherwise a column of structs, which `unnest` makes columns of. It is named after the
    (first) method: `frame.with_columns(predict(model, "predict_proba")).unnest("predict_proba")`.

    columns: names or expressions to compute the model on, one or a list, with the names of the model's columns; a model that knows no
    names takes them in this order. By default `model.arrow().columns`. methods, class_names: as `CompiledModel.arrow` takes them. Raises
    ValueError as that does, and for a model without names if columns is None. At work, hbc's errors come as
    polars.exceptions.ComputeError.

    Example:
        >>> import polars, hbc.engines.polars
        >>> labels = hbc.engines.polars.predict(hbc.convert(forest), columns=[polars.all()])
        >>> dict(polars.DataFrame(X).select(labels).schema)
        {'predict': Boolean}
    """
    import polars as pl
    import pyarrow as pa

    method = arrow_method(model, methods, class_names)
    chosen = method.columns if columns is None else [columns] if isinstance(columns, (str, pl.Expr)) else _listed(columns)
    if chosen is None:
        raise ValueError("columns: found None, expected the names of the columns, since the model knows none")
    if not chosen or not all(isinstance(each, (str, pl.Expr)) for each in chosen):
        raise ValueError(f"columns: found {shown(columns)}, expected names or expressions of Polars, one or several")
    empty = pl.DataFrame(method.schema.empty_table())
    single = empty.width == 1
    name = method.methods[0]

    def function(rows: Any, return_dtype: Any) -> Any:
        try:
            found = pl.DataFrame(method(pa.table(rows.struct.unnest())))
        except InvalidInputError as error:  # Polars cannot hand on an error whose constructor takes keywords
            raise pl.exceptions.ComputeError(str(error)) from error
        return found.to_series() if single else found.to_struct(name)

    dtype = empty.dtypes[0] if single else pl.Struct(empty.schema)
    return pl.struct(chosen).map_batches(function, return_dtype=dtype, is_elementwise=True).alias(name)


def _listed(columns: Any) -> list[Any]:
    """The elements of an iterable; of anything else none."""
    try:
        return list(columns)
    except TypeError:  # no iterable, or an array without axes
        return []
