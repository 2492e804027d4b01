"""HBC_DEBUG prints to stderr: from 1 on passes and times, from 2 on choices with reasons, from 3 on the graph after each pass, from 4 on
the generated source. HBC_WITHOUT leaves out passes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc

X = np.random.default_rng(0).normal(size=(40, 3))
SHOWN = {
    "1": ("hbc: pass Lower",),
    "2": ("hbc: pass Lower", "TreeEnsemble of 3 trees"),
    "3": ("hbc: pass Lower", "TreeEnsemble of 3 trees", "def graph("),
    "4": ("hbc: pass Lower", "TreeEnsemble of 3 trees", "def graph(", "@T.prim_func"),
}


@pytest.fixture(scope="module")
def forest() -> RandomForestClassifier:
    return RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, X[:, 0] > 0)


@pytest.mark.parametrize("level", SHOWN)
def test_each_level_shows_more(
    forest: RandomForestClassifier, level: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setenv("HBC_DEBUG", level)
    hbc.convert(forest, "tvm").predict(X)
    output = capfd.readouterr()
    shown = [text for text in SHOWN["4"] if text in output.err]
    assert tuple(shown) == SHOWN[level]
    assert not output.out


def test_every_line_belongs_to_a_variant(
    forest: RandomForestClassifier, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm")
    monkeypatch.setenv("HBC_DEBUG", "1")
    hbc.convert(forest, "tvm").predict(X)
    lines = capfd.readouterr().err.splitlines()
    shown = [re.sub(r"[\d.]+ ms", "… ms", line) for line in lines if not line.startswith("hbc: pass ")]
    assert shown == [
        "hbc: variant f32: optimizer and compiler imported in … ms; passes:",
        "hbc: variant f32: optimized in … ms",
        "hbc: variant f64: can run; it is optimized and compiled when it is needed",
        "hbc: variant i64: can run; it is optimized and compiled when it is needed",
        "hbc: variant f64: optimizer and compiler imported in … ms; passes:",
        "hbc: variant f64: optimized in … ms",
        "hbc: variant f64: predict compiled in … ms",
    ]


GENERATED = {
    "tvm": "@T.prim_func",
    "torch": "# run by PyTorch, operator by operator\ndef graph(",
    "torchscript": "def predict_proba(",
    "onnx": "hbc (double[N,3] X) => (double[N,2] predict_proba)",
    "numpy": "# run by numpy, operator by operator\ndef graph(",
}


@pytest.mark.parametrize("backend", GENERATED)
def test_level_4_shows_what_every_backend_runs(
    forest: RandomForestClassifier, backend: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not hbc.backends()[backend]:
        pytest.skip("not installed")
    monkeypatch.setenv("HBC_DEBUG", "4")
    hbc.convert(forest, backend).predict_proba(X)
    shown = capfd.readouterr().err.rpartition("hbc: pass FoldConstants")[2]
    assert GENERATED[backend] in shown


def test_nothing_is_shown_without_it(
    forest: RandomForestClassifier, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for level in ("", "0"):
        monkeypatch.setenv("HBC_DEBUG", level)
        hbc.convert(forest, "numpy")
    assert capfd.readouterr() == ("", "")
    for level in ("yes", "5", "9", "44", "-1", "٣"):
        monkeypatch.setenv("HBC_DEBUG", level)
        with pytest.raises(ValueError, match=rf"HBC_DEBUG='{level}': expected 0 \(nothing\), 1"):
            hbc.convert(forest, "numpy")


def test_passes_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_pipeline(StandardScaler(), SelectKBest(k=2)).fit(X, X[:, 0] > 0)
    monkeypatch.setenv("HBC_WITHOUT", "PushSelection, MergeColumns")
    without = hbc.convert(model, "numpy")
    passes = without.explain().partition("passes:")[2]
    assert "PushSelection" not in passes
    assert "FoldConstants" in passes
    np.testing.assert_array_equal(without.transform(X), model.transform(X))
    monkeypatch.setenv("HBC_WITHOUT", "Lower")
    with pytest.raises(
        ValueError, match=r"HBC_WITHOUT names Lower; the passes that can be left out are .*PushSelection, .*MergeColumns"
    ):
        hbc.convert(model, "numpy")
