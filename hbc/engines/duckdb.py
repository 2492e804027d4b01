"""A model as a function of SQL in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hbc.engines.worker import arrow_method
from hbc.errors import counted

if TYPE_CHECKING:
    from hbc.runtime.model import CompiledModel

TYPES = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "float": "FLOAT",
    "double": "DOUBLE",
    **{f"int{bits}": name for bits, name in ((8, "TINYINT"), (16, "SMALLINT"), (32, "INTEGER"), (64, "BIGINT"))},
    **{f"uint{bits}": name for bits, name in ((8, "UTINYINT"), (16, "USMALLINT"), (32, "UINTEGER"), (64, "UBIGINT"))},
}
"""The types of Arrow that a result can have → those of DuckDB."""


def register(
    con: Any,
    model: CompiledModel,
    name: str = "hbc_predict",
    methods: str | Sequence[str] | None = None,
    *,
    class_names: Sequence[str] | None = None,
) -> Any:
    """`con` itself, a DuckDB connection in which the function `name` now computes the model.

    The function takes the columns of the model in the order of `model.arrow().columns`, or a row that has them by name, among others:
    `SELECT hbc_predict(age, town) FROM 'people.parquet'`, `SELECT hbc_predict(people) FROM people`. For one column of results it returns a
    value, for several, such as probabilities, a STRUCT: `hbc_proba(people).predict_proba_yes`. NULL is a missing value.

    methods, class_names: as `CompiledModel.arrow` takes them. Raises ValueError as that does. DuckDB puts hbc's errors into its own
    (duckdb.InvalidInputException).

    Example:
        >>> import duckdb, hbc.engines.duckdb
        >>> con = hbc.engines.duckdb.register(duckdb.connect(), hbc.convert(forest))
        >>> con.sql("SELECT hbc_predict(1::FLOAT, 0::FLOAT, 0::FLOAT, 0::FLOAT)").fetchall()
        [(True,)]
    """
    import pyarrow as pa

    method = arrow_method(model, methods, class_names)
    types = {field.name: con.type(TYPES[str(field.type)]) for field in method.schema}
    single = len(types) == 1

    def function(*columns: Any) -> Any:
        row = len(columns) == 1 and pa.types.is_struct(columns[0].type)
        if row:
            table = pa.Table.from_struct_array(columns[0])
        else:
            names = method.columns or [f"argument {i + 1}" for i in range(len(columns))]
            if len(names) != len(columns):
                raise TypeError(f"{name}: found {counted(len(columns), 'argument')}, expected {len(names)}: {', '.join(names)}")
            table = pa.table(list(columns), names)
        found = method(table)
        return found.column(0) if single else found.to_struct_array()

    returned = next(iter(types.values())) if single else con.struct_type(types)
    return con.create_function(name, function, None, returned, type="arrow", null_handling="special")
