"""The classes that predict or transform new data but do not convert, each with its reason. UnsupportedOperatorError and
docs/what-converts.md give these reasons. The sweep over scikit-learn (tests/test_sweep.py) fails for a class that is neither
here nor in the registry."""

from __future__ import annotations

UNSUPPORTED: dict[str, str] = {
    "sklearn.feature_extraction.image.PatchExtractor": (
        "it cuts images [N, height, width] into patches, so that its rows are not those of its input."
    ),
}
"""Public name → a sentence. A class that gets a converter leaves this list."""

ON_NEW_DATA = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "transform",
    "score_samples",
    "kneighbors",
    "apply",
)


def reason_against(cls: type, name: str) -> str:
    """Why no model of a class (by its public name) converts; "" if no reason is known."""
    if name in UNSUPPORTED:
        return UNSUPPORTED[name]
    if hasattr(cls, "fit") and not any(hasattr(cls, method) for method in ON_NEW_DATA):
        return "it has no predict or transform for new data, so there is nothing to compile."
    return ""
