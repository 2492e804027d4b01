"""The methods of source estimators as type checkers and readers see them: signatures, shapes, errors.

A compiled model has only those of its source. They are made by `hbc.runtime.model`, which takes the docstrings from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    class Shaped(Protocol):
        """A matrix of scipy, a frame, a tensor."""

        @property
        def shape(self) -> Any: ...

    class ArrowStream(Protocol):
        """A table, batch or reader of Arrow."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

    Data = ArrayLike | Shaped | ArrowStream | Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Methods:
    """All methods and attributes that a compiled model can have."""

    if TYPE_CHECKING:
        classes_: NDArray[Any]
        n_features_in_: int
        n_outputs_: int
        feature_names_in_: NDArray[Any]

    def predict(
        self, X: Data, *, raw_score: bool = False, pred_leaf: bool = False, output_margin: bool = False
    ) -> NDArray[Any]:
        """The predicted labels or numbers, [rows] or [rows, targets], of the source's dtype.

        raw_score and pred_leaf (LightGBM), output_margin and pred_leaf (XGBoost): the result of `raw_score` or `apply` instead."""
        raise NotImplementedError

    def predict_proba(self, X: Data, *, raw_score: bool = False, pred_leaf: bool = False) -> NDArray[Any]:
        """The probabilities of the classes in the order of `classes_`, [rows, classes]; a list of such arrays for several targets."""
        raise NotImplementedError

    def predict_log_proba(self, X: Data) -> NDArray[Any]:
        """The logarithms of the probabilities, [rows, classes]; a list of such arrays for several targets."""
        raise NotImplementedError

    def predict_joint_log_proba(self, X: Data) -> NDArray[Any]:
        """The logarithms of the joint probabilities of the row and each class, [rows, classes]."""
        raise NotImplementedError

    def decision_function(self, X: Data) -> NDArray[Any]:
        """The scores before the decision, [rows] for two classes and for outliers, otherwise [rows, classes]."""
        raise NotImplementedError

    def raw_score(self, X: Data) -> NDArray[Any]:
        """The sums of leaves before the link, [rows] or [rows, classes]: LightGBM's raw_score=True, XGBoost's output_margin=True."""
        raise NotImplementedError

    def apply(self, X: Data) -> NDArray[Any]:
        """The number of the leaf that the row reaches in each tree, [rows, trees]; some sources add an axis for the classes."""
        raise NotImplementedError

    def score_samples(self, X: Data) -> NDArray[Any]:
        """The score of each row, such as its log-likelihood, [rows]."""
        raise NotImplementedError

    def mahalanobis(self, X: Data) -> NDArray[Any]:
        """The squared Mahalanobis distance of each row, [rows]."""
        raise NotImplementedError

    def kneighbors(self, X: Data) -> Any:
        """The distances of the nearest neighbours and their numbers in the training data, each [rows, neighbours]."""
        raise NotImplementedError

    def transform(self, X: Data) -> Any:
        """The transformed rows, [rows, columns]: an array, a sparse matrix or a frame, whichever the source returns."""
        raise NotImplementedError

    def staged_predict(self, X: Data) -> Iterator[NDArray[Any]]:
        """Yields `predict` after each stage."""
        raise NotImplementedError

    def staged_predict_proba(self, X: Data) -> Iterator[NDArray[Any]]:
        """Yields `predict_proba` after each stage."""
        raise NotImplementedError

    def staged_decision_function(self, X: Data) -> Iterator[NDArray[Any]]:
        """Yields `decision_function` after each stage."""
        raise NotImplementedError

    def score(self, X: Data, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy of a classifier, R² of a regressor, where the source's score is that. It needs scikit-learn."""
        raise NotImplementedError


_INPUT = """

        X: what the source's method takes, [rows, n_features_in_]: an array, list, frame, sparse matrix, tensor or table of Arrow.

        Raises InvalidInputError, a ValueError, for X that the source rejects (its message names the column and the row), and for X that
        the source computes in a way that hbc does not follow."""


def doc_of(name: str) -> str:
    """The docstring of a method: what it returns, X, and the errors."""
    declared = vars(Methods).get(name)
    return (declared.__doc__ if declared else f"The result of the source's `{name}` for X: an array [rows, …].") + _INPUT
