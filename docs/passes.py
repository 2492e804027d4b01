"""`python docs/passes.py` draws docs/pictures/pass-*.svg: for some passes of the optimizer, the graph of a real pipeline before and after
the pass. tests/test_docs.py compares them with what it would draw now."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from hbc.compiler.base import CompileOptions, load_compiler
from hbc.ir.graph import Graph
from hbc.ir.rewrite import Noted, without_facts
from hbc.optimizer.columns.simplify import RemoveChecks
from hbc.optimizer.pipeline import ORDER, Settings
from hbc.parser.parse import parse
from hbc.runtime.drawing import svg
from hbc.runtime.input.intake import describe

FOLDER = Path(__file__).parent / "pictures"
GAP, CAPTION = 50, 26  # pixels between the two graphs, and above them
STYLE = """
svg { font: 11px ui-monospace, monospace; }
path { fill: none; stroke: #8c959f; }
text { fill: #1f2328; text-anchor: middle; }
.caption { fill: #737d87; font: 13px system-ui, sans-serif; }
.small { fill: #68717a; }
rect { fill: #e8f0fb; stroke: #b3bac1; }
.input rect, .method rect { fill: #eef0f2; }
.changed rect { stroke: #d9480f; stroke-width: 1.6; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ec; } .small { fill: #9aa4ae; } .caption { fill: #8c959f; }
  rect { fill: #1d2c42; stroke: #59636d; }
  .input rect, .method rect { fill: #2a2f35; }
  .changed rect { stroke: #ff8a4c; }
}
"""


def _numbers() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    return X, X[:, 0] + X[:, 1] > 0


def _texts() -> tuple[Any, Any]:
    """Rows of an age, an income and a city."""
    random = np.random.default_rng(0)
    X = np.array(
        [*zip(random.integers(18, 90, 600), random.integers(9, 99, 600), random.choice([*"ABCDE"], 600), strict=True)], object
    )
    return X, (X[:, 0] > 50) ^ np.isin(X[:, 2], ["A", "C"])


def _linear() -> tuple[Any, Any]:
    X, y = _numbers()
    return make_pipeline(StandardScaler(), PCA(5), LogisticRegression()).fit(X, y), X


def _selected() -> tuple[Any, Any]:
    X, y = _numbers()
    return make_pipeline(SimpleImputer(), StandardScaler(), SelectKBest(k=2), LogisticRegression()).fit(X, y), X


def _scaled_trees() -> tuple[Any, Any]:
    X, y = _numbers()
    return make_pipeline(SimpleImputer(), StandardScaler(), HistGradientBoostingClassifier(max_iter=10)).fit(X, y), X


def _one_hot_trees() -> tuple[Any, Any]:
    X, y = _texts()
    encoder = make_column_transformer(("passthrough", [0, 1]), (OneHotEncoder(sparse_output=False), [2]))
    return make_pipeline(encoder, HistGradientBoostingClassifier(max_iter=10)).fit(X, y), X


def _ordinal_trees() -> tuple[Any, Any]:
    X, y = _texts()
    encoder = make_column_transformer(("passthrough", [0, 1]), (OrdinalEncoder(), [2]))
    return make_pipeline(encoder, HistGradientBoostingClassifier(max_iter=10)).fit(X, y), X


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "PushSelection": _selected,
    "FoldLinear": _linear,
    "NumbersIntoTrees": _scaled_trees,
    "NarrowCodes": _ordinal_trees,
    "CategoriesIntoTrees": _one_hot_trees,
}
"""Pass → a function that gives a fitted pipeline on which it fires, and rows."""


def around(name: str) -> tuple[Graph, Graph]:
    """The graph of `decision_function` before and after a pass, with all passes before it done; without checks, which no picture needs."""
    model, X = MODELS[name]()
    found = parse(model, describe(X))
    graph = without_facts(next(iter(found.variants.values())).select("decision_function"))
    settings = Settings(load_compiler("tvm"), CompileOptions(), "scan")
    for position in ORDER:
        made = position.make(settings)(graph)
        after = made.graph if isinstance(made, Noted) else made
        if position.name == name:
            return RemoveChecks()(graph), RemoveChecks()(after)
        graph = after
    raise KeyError(name)


def picture(name: str) -> str:
    """The picture of a pass, as SVG that stands alone."""
    before, after = around(name)
    if before.nodes == after.nodes:
        raise ValueError(f"{name} does not fire")
    parts = [svg(before, after, frozenset()), svg(after, before, frozenset())]
    sizes = [tuple(map(int, re.findall(r"(?:width|height)='(\d+)'", part)[:2])) for part in parts]
    width, height = sum(size[0] for size in sizes) + GAP, max(size[1] for size in sizes) + CAPTION
    text, left = "", 0
    for part, (wide, _), caption in zip(parts, sizes, ("before", "after"), strict=True):
        text += f"<text class='caption' x='{left + wide / 2:.0f}' y='14'>{caption}</text>"
        text += (
            re.sub(r"<title>.*?</title>", "", part, flags=re.DOTALL).replace("<svg ", f"<svg x='{left}' y='{CAPTION}' ", 1)
            + "\n"
        )
        left += wide + GAP
    size = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>\n<style>{STYLE}</style>\n{text}</svg>\n"


def path(name: str) -> Path:
    return FOLDER / f"pass-{name}.svg"


if __name__ == "__main__":
    for each in MODELS:
        path(each).write_text(picture(each))
