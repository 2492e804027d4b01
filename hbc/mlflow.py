"""hbc's flavor of MLflow: `log_model`, `save_model`, `load_model`, and what `mlflow.pyfunc` calls. A logged model is a file `.hbc`; no
pickle is written or read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import Model, ModelSignature, infer_signature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from mlflow.types.schema import AnyType

from hbc.compiler.base import BACKENDS
from hbc.errors import ArtifactError, InvalidInputError, counted
from hbc.loading import load
from hbc.runtime.model import CompiledModel
from hbc.runtime.schema import Output
from hbc.serve import examples
from hbc.serve.served import named_outputs
from hbc.version import VERSION

FLAVOR_NAME = "hbc"
FILE = "model.hbc"
USUAL = ("predict", "transform")
"""The method of `mlflow.pyfunc`, if nothing else is asked for: the first that the model has, or its first method."""
NAMED_TYPES = {"float64": DataType.double, "float32": DataType.float, "int64": DataType.long, "int32": DataType.integer}
"""numpy's dtype → MLflow's type, of results with names."""


def save_model(
    model: CompiledModel,
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    signature: ModelSignature | bool | None = None,
    input_example: Any = None,
    conda_env: Any = None,
    pip_requirements: Any = None,
    extra_pip_requirements: Sequence[str] | str | None = None,
    metadata: dict[str, Any] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Write a folder that MLflow loads, with the flavors `hbc` and `python_function`.

    Args:
        model: a compiled model, of `hbc.convert` or `hbc.load`.
        path: the folder, which must not exist yet or be empty.
        method: what `predict` of the pyfunc computes, such as "predict_proba". By default "predict", or "transform" of a transformer.
        signature: by default it comes from `input_example`, as MLflow infers it; without one, from `model.schema`. False: none.
        input_example: rows as the model takes them, or (rows, {"method": …}). By default one row that is made from `model.schema`; it is
            left out where the model rejects it. False: none.
        conda_env: as in MLflow's flavors.
        pip_requirements: the same. By default this version of hbc, with the extra of the model's backend.
        extra_pip_requirements: the same: requirements besides those.
        metadata: the same.
        mlflow_model: the MLmodel file in the making, which `mlflow.models.Model.log` passes.

    Raises:
        TypeError: the model is not compiled.
        ValueError: the model has no such method.
        mlflow.MlflowException: the folder is not empty, or the example does not fit the signature.
    """
    if not isinstance(model, CompiledModel):
        raise TypeError(f"model: found a {type(model).__name__}, expected a CompiledModel of hbc.convert or hbc.load")
    chosen = _method(model, method)
    if input_example is None:
        input_example = example(model, chosen)
        signature = signature_of(model, chosen) if signature is None else signature
    elif signature is None and input_example is not False:
        signature = _inferred(model, chosen, input_example)
    if conda_env is None and pip_requirements is None:
        extra = [f"-r {extra_pip_requirements}"] if isinstance(extra_pip_requirements, str) else extra_pip_requirements
        pip_requirements, extra_pip_requirements = [*get_default_pip_requirements(model.backend), *(extra or ())], None
    mlflow_model = Model() if mlflow_model is None else mlflow_model
    mlflow_model.add_flavor(
        FLAVOR_NAME,
        hbc_version=VERSION,
        data=f"data/{FILE}",
        source=model.info.source,
        backend=model.backend,
        methods=list(model.methods),
        **_labels(model),
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*An input example was not provided")  # none could be made, or the caller wants none
        model.save(Path(folder, FILE))
        mlflow.pyfunc.save_model(
            os.fspath(path),
            loader_module="hbc.mlflow",
            data_path=os.path.join(folder, FILE),
            model_config={"method": chosen, "backend": None, "device": None},  # MLflow lets a loader change what stands here
            signature=signature or None,
            input_example=None if input_example is False else input_example,
            conda_env=conda_env,
            pip_requirements=pip_requirements,
            extra_pip_requirements=extra_pip_requirements,
            metadata=metadata,
            mlflow_model=mlflow_model,
        )


def log_model(model: CompiledModel, name: str | None = None, **options: Any) -> Any:
    """Log a compiled model to MLflow. Returns MLflow's ModelInfo, whose `model_uri` is for `load_model` and `mlflow.pyfunc.load_model`.

    Args:
        model: a compiled model.
        name: its name, as in MLflow's flavors.
        options: those of `save_model`, and those of `mlflow.models.Model.log`, `registered_model_name`, `params`, `tags` and others.

    Raises:
        TypeError, ValueError, mlflow.MlflowException: as `save_model`.

    Example:
        >>> with mlflow.start_run():
        ...     info = hbc.mlflow.log_model(compiled, "churn", method="predict_proba")
        >>> mlflow.pyfunc.load_model(info.model_uri).predict(frame)
    """
    return Model.log(artifact_path=None, name=name, flavor=sys.modules[__name__], model=model, **options)


def load_model(model_uri: str, dst_path: str | None = None, **options: Any) -> CompiledModel:
    """The compiled model of a URI of MLflow (`models:/…`, `runs:/…`, or a folder) with all its methods.

    Args:
        model_uri: the URI.
        dst_path: the folder to download to. By default a temporary one.
        options: those of `hbc.load`, such as `device` and `backend`.

    Raises:
        ArtifactError: it was not logged by `hbc.mlflow`, or the file is damaged.
    """
    place = mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path)
    flavor = Model.load(place).flavors.get(FLAVOR_NAME)
    if flavor is None:
        advice = "mlflow.pyfunc.load_model loads models of any flavor."
        raise ArtifactError(path=model_uri, found="a model without the flavor hbc", expected="one of hbc.mlflow", advice=advice)
    return load(os.path.join(place, flavor["data"]), **options)


def get_default_pip_requirements(backend: str = "tvm") -> list[str]:
    """The packages that a logged model needs besides MLflow: hbc with the extra of its backend. A backend of another package adds that
    package."""
    if backend in BACKENDS:
        extra = BACKENDS[backend].extra
        return [f"hbc[{extra}]=={VERSION}" if extra else f"hbc=={VERSION}"]
    points = importlib.metadata.entry_points(group="hbc.backends", name=backend)
    homes = {point.dist.name: point.dist.version for point in points if point.dist is not None}
    return [f"hbc=={VERSION}", *(f"{name}=={version}" for name, version in homes.items())]


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> PyfuncModel:
    """What `mlflow.pyfunc.load_model` calls. model_config: "method", "backend", "device"; None is what the file says."""
    config = model_config or {}
    model = load(path, config.get("device"), config.get("backend"))
    loaded = PyfuncModel(model, _method(model, config.get("method")))
    _accepted(loaded, _row(model))  # compiles the method, so that the first request need not wait for it
    return loaded


class PyfuncModel:
    """A compiled model as `mlflow.pyfunc` calls it."""

    def __init__(self, model: CompiledModel, method: str) -> None:
        self._model = model
        self._method = method
        self._names = examples.column_names(model) if model.spec.frames.by_name else None
        self._categories = [
            i for i, column in enumerate(model.spec.columns) if column.category_values or column.categories_only
        ]
        """The columns of categories of pandas."""

    def get_raw_model(self) -> CompiledModel:
        """The compiled model."""
        return self._model

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """The result of a method for rows: a frame where the result has names (classes), an array, or a dict of arrays where the method
        gives several.

        params: {"method": …} asks for another method than the one chosen when the model was logged.

        Raises MlflowException, of which MLflow's server shows the message, for an unknown method and for rows that the model does not
        take."""
        try:
            method = _method(self._model, (params or {}).get("method") or self._method)
            result = self._answer(method, data)
        except (InvalidInputError, ValueError) as error:
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from error
        if isinstance(result, pd.DataFrame):
            return result
        arrays = named_outputs(method, result)
        if list(arrays) != [method]:
            return arrays
        names = self._model.schema.outputs[method].names
        if names is None or np.shape(arrays[method])[1:] != (len(names),):
            return arrays[method]
        return pd.DataFrame(arrays[method], columns=list(names), index=data.index if isinstance(data, pd.DataFrame) else None)

    def _answer(self, method: str, data: Any) -> Any:
        call = getattr(self._model, method)
        if self._model.spec.ndim != 2:
            return call(_items(data))
        if isinstance(data, pd.DataFrame):
            if not self._lacks_categories(data):
                return call(self._with_numbers(data))
            data = {name: _values(data[name]) for name in data}
        records = self._model.bind_record(method)
        if isinstance(data, dict):
            return records.columns(data) if any(map(np.ndim, data.values())) else records(data)
        if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
            return records.rows(data)
        return call(data)

    def _with_numbers(self, data: pd.DataFrame) -> pd.DataFrame:
        """The frame with float64 for numbers that came as Python objects: JSON's null alone, and nulls beside integers."""
        if not data.columns.is_unique:
            return data
        changed = data
        for place, column in enumerate(self._model.schema.columns):
            name = self._names[place] if self._names else data.columns[place] if place < data.shape[1] else None
            if name in data and data[name].dtype == object and column.dtype not in (None, "str"):
                items = data[name].tolist()
                if all(item is None or (type(item) in (int, float) and not abs(item) > 2**53) for item in items):
                    changed = data.copy(deep=False) if changed is data else changed
                    changed[name] = np.array(items, np.float64)
        return changed

    def _lacks_categories(self, data: pd.DataFrame) -> bool:
        """Whether a column of categories came as strings or numbers, as MLflow's types have it. The source would reject such a frame; as
        records, hbc finds the categories."""
        if not data.columns.is_unique:
            return False
        for place in self._categories:
            name = self._names[place] if self._names else data.columns[place] if place < data.shape[1] else None
            if name in data and not isinstance(data[name].dtype, pd.CategoricalDtype):
                return True
        return False


def signature_of(model: CompiledModel, method: str | None = None) -> ModelSignature:
    """The signature of a compiled model for one method (by default as in `save_model`), from `model.schema`.

    Columns with names are MLflow's columns: strings are `string`, and numbers `Any`. MLflow would refuse integers for `double`, floats and
    missing values for `long`, and its server cuts 2.5 to 2 there; hbc tests numbers itself. Columns that may miss values are optional;
    those that a frame need not have are left out. A matrix without names is a tensor. The parameter `method` asks for another method."""
    schema, chosen = model.schema, _method(model, method)
    names = examples.column_names(model)
    inputs: list[Any] = []
    if model.spec.items == "documents":
        inputs = [ColSpec(DataType.string)]
    elif model.spec.ndim != 2:
        texts = model.spec.items or _dtype(model, 0) == "str"
        inputs = [TensorSpec(np.dtype(object if texts else _dtype(model, 0)), (-1,))]
    elif names is None:
        dtypes = {_dtype(model, i) for i in range(len(schema.columns))}
        dtype = dtypes.pop() if len(dtypes) == 1 else "float64" if "str" not in dtypes else "object"
        inputs = [TensorSpec(np.dtype("object" if dtype == "str" else dtype), (-1, len(schema.columns)))]
    else:
        for i, column in enumerate(schema.columns):
            if column.required:
                inputs.append(ColSpec(_type(model, i), names[i], required=not column.allows_missing))
    return ModelSignature(Schema(inputs), _outputs(schema.outputs[chosen]), _params())


def example(model: CompiledModel, method: str | None = None) -> Any:
    """One row for `input_example`, from `model.schema`: a frame where columns have names, otherwise an array, or a list of texts.
    False where the model rejects that row: it is made without knowing the data."""
    row = _row(model)
    return row if _accepted(PyfuncModel(model, _method(model, method)), row) else False


def _row(model: CompiledModel) -> Any:
    values = [examples.value(column) for column in model.schema.columns if column.required]
    if model.spec.items == "documents":
        return values
    inputs = signature_of(model).inputs
    if model.spec.items:
        return _objects(values)
    if inputs.is_tensor_spec():
        return np.array(values if model.spec.ndim != 2 else [values], inputs.inputs[0].type)
    places = [i for i, column in enumerate(model.schema.columns) if column.required]
    columns = zip(inputs.input_names(), places, values, strict=True)
    return pd.DataFrame({name: pd.Series([value], dtype=_dtype_in_row(model, i)) for name, i, value in columns})


def _dtype_in_row(model: CompiledModel, place: int) -> Any:
    """The dtype of a column of the input example: that of its categories, where it has categories of pandas."""
    categories = model.spec.columns[place].category_values
    if not categories:
        found = _dtype(model, place)
        return object if found == "str" else found
    if all(isinstance(value, str) for value in categories):
        return object
    return "int64" if all(float(value).is_integer() for value in categories) else "float64"


def _objects(items: list[Any]) -> Any:
    """The items as an array of Python objects [items], whatever they hold."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _accepted(pyfunc: PyfuncModel, row: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the source warns of concerns the caller's rows, not this one
        try:
            pyfunc.predict(row)
        except mlflow.MlflowException:
            return False
    return True


def _inferred(model: CompiledModel, method: str, given: Any) -> ModelSignature:
    """The signature that MLflow infers from an example and its result, with the parameter `method`."""
    rows, params = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    inferred = infer_signature(rows, PyfuncModel(model, method).predict(rows, params))
    return ModelSignature(inferred.inputs, inferred.outputs, _params())


def _params() -> ParamSchema:
    return ParamSchema([ParamSpec("method", DataType.string, None)])


def _outputs(output: Output) -> Schema | None:
    """The schema of a result. None for several arrays, which have none in MLflow."""
    if output.more:
        return None
    dtype = np.dtype(output.dtype)
    if output.names is not None and output.shape == (len(output.names),) and str(dtype) in NAMED_TYPES:
        return Schema([ColSpec(NAMED_TYPES[str(dtype)], name) for name in output.names])
    return Schema([TensorSpec(np.dtype(str) if dtype.kind == "U" else dtype, (-1, *output.shape))])


def _dtype(model: CompiledModel, place: int) -> str:
    """The widest dtype that a column's values keep: "str", "int64" where the model was converted for it, otherwise "float64", or "float32"
    for a model that takes no other."""
    column = model.schema.columns[place]
    if column.dtype in ("str", "int64"):
        return column.dtype
    return "float64" if column.dtype is None or any(kinds[place] == "f64" for kinds in model.variants) else "float32"


def _type(model: CompiledModel, place: int) -> Any:
    """MLflow's type of a column."""
    return DataType.string if _dtype_in_row(model, place) is object else AnyType()


def _method(model: CompiledModel, asked: str | None) -> str:
    """The method that is asked for, or the usual one. Raises ValueError for one that the model does not have."""
    if asked is None:
        return next((method for method in USUAL if method in model.methods), model.methods[0])
    if asked not in model.methods:
        raise ValueError(f"method: found {asked!r}, expected one of {', '.join(model.methods)}")
    return asked


def _labels(model: CompiledModel) -> dict[str, Any]:
    """The classes of a classifier, for the MLmodel file."""
    found = [output["classes"] for output in model.schema.json()["outputs"].values() if output["classes"] is not None]
    return {"classes": json.loads(json.dumps(found[0], default=str))} if found else {}


def _items(data: Any) -> Any:
    """The items of a model that takes no columns: MLflow makes a frame of one column of them, or an array of objects."""
    if isinstance(data, pd.DataFrame):
        if data.shape[1] != 1:
            raise InvalidInputError(
                found=f"a frame of {counted(data.shape[1], 'column')}", expected="one column, whose rows are the items"
            )
        data = data.iloc[:, 0]
    return data.tolist() if isinstance(data, (pd.Series, np.ndarray)) and data.dtype.kind not in "fiu" else data


def _values(column: pd.Series[Any]) -> Any:
    """The values of a column for a dict of columns: None is a missing one among strings and Python objects."""
    return (
        column.to_numpy()
        if isinstance(column.dtype, np.dtype) and column.dtype.kind != "O"
        else column.astype(object).where(column.notna(), None).tolist()
    )
