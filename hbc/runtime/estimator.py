"""What scikit-learn's tools ask of an estimator, answered by a compiled model. scikit-learn is imported only when a tool asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from hbc.errors import FrozenModelError

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from hbc.ir.signature import InputSpec, ModelInfo
    from hbc.runtime.calls import ArrayCall


class Estimator:
    """A fitted estimator that never changes."""

    _estimator: ModelInfo
    _calls: Mapping[str, ArrayCall]
    spec: InputSpec

    def fit(self, X: Any = None, y: Any = None, **parameters: Any) -> NoReturn:
        """Raises FrozenModelError: the model is compiled. Fit its source, and convert it again."""
        raise FrozenModelError(asked="fit", source=self._estimator.source)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """An empty dict: a compiled model has no parameters."""
        return {}

    def set_params(self, **parameters: Any) -> Self:
        """The model itself, if nothing is to be set. Raises FrozenModelError otherwise."""
        if parameters:
            raise FrozenModelError(asked=f"set_params({', '.join(parameters)})", source=self._estimator.source)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return self

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn asks by `is_classifier`, `check_is_fitted` and so on."""
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags, TransformerTags

        kind, columns = self._estimator.kind or None, self.spec.columns
        return Tags(
            estimator_type=kind,
            target_tags=TargetTags(required=kind in ("classifier", "regressor")),
            transformer_tags=TransformerTags() if "transform" in self._calls else None,
            classifier_tags=ClassifierTags() if kind == "classifier" else None,
            regressor_tags=RegressorTags() if kind == "regressor" else None,
            input_tags=InputTags(
                one_d_array=self.spec.ndim == 1,
                two_d_array=self.spec.ndim == 2,
                string=any(column.strings for column in columns),
            ),
        )


def score(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """The score of predictions for X, by the source's own metric: the accuracy of a classifier, R² of a regressor. It needs scikit-learn.

    y: the true labels or numbers, [rows] or [rows, targets]. sample_weight: [rows], or None. Raises what `predict` raises, and ValueError
    for another number of rows."""
    from sklearn import metrics

    metric = metrics.accuracy_score if self._estimator.score == "accuracy" else metrics.r2_score
    return float(metric(y, self.predict(X), sample_weight=sample_weight))
