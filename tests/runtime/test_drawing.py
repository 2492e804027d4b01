"""Graphs are drawn without boxes that touch or lines that run through boxes; the report fits its window, in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hbc
from hbc.runtime.layers import Bend, layout

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(200, 5))


@pytest.fixture(scope="module")
def page() -> str:
    model = make_pipeline(SimpleImputer(), StandardScaler(), HistGradientBoostingClassifier(max_iter=10)).fit(X, X[:, 0] > 0)
    return hbc.convert(model, "numpy").explain(html=True)


@pytest.mark.parametrize("seed", range(20))
def test_boxes_do_not_touch(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources = {i: sorted(set(random.integers(0, i, random.integers(0, min(i, 3) + 1)).tolist())) for i in range(40)}
    widths = {i: float(random.integers(20, 150)) for i in sources}
    found = layout(sources, widths)
    for target, boxes in sources.items():
        for source in boxes:
            passed = found.line(source, target)
            assert [found.layers[box] for box in passed] == list(range(found.layers[source], found.layers[target] + 1))
    for one, other in combinations(found.middles, 2):
        if found.layers[one] == found.layers[other]:
            room = abs(found.middles[one] - found.middles[other])
            half = [0.0 if isinstance(box, Bend) else widths[box] / 2 for box in (one, other)]
            assert room >= sum(half)
    edges = [(found.middles[box] - widths[box] / 2, found.middles[box] + widths[box] / 2) for box in widths]
    assert min(left for left, _ in edges) >= 0
    assert max(right for _, right in edges) <= found.width + 1e-6


def test_a_line_goes_round_what_is_between() -> None:
    found = layout({"a": [], "b": ["a"], "c": ["b"], "d": ["c", "a"]}, dict.fromkeys("abcd", 100.0))
    assert found.line("a", "d") == ["a", Bend("a", "d", 1), Bend("a", "d", 2), "d"]
    for bend, box in ((Bend("a", "d", 1), "b"), (Bend("a", "d", 2), "c")):
        assert abs(found.middles[bend] - found.middles[box]) > 50


def test_what_a_pass_made_or_removed_is_marked(page: str) -> None:
    before, after = (ElementTree.fromstring(text) for text in re.findall(r"<svg .*?</svg>", page, re.DOTALL))

    def boxes(picture: ElementTree.Element, look: str) -> set[str]:
        groups = [group for group in picture.findall("{*}g") if look in group.attrib["class"].split()]
        return {group.find("{*}text").text for group in groups}  # type: ignore[union-attr, misc]

    assert {"Impute", "Standardize", "TreeEnsemble"} <= boxes(before, "changed")
    assert "TreeEnsemble" in boxes(after, "changed")
    assert not {"Impute", "Standardize"} & boxes(after, "device")
    assert not boxes(before, "device")
    assert {"predict", "predict_proba"} <= boxes(before, "method") & boxes(after, "method")


def test_parameters_are_shown_at_the_pointer(page: str) -> None:
    titles = [
        title.text or ""
        for title in ElementTree.fromstring(re.findall(r"<svg .*?</svg>", page, re.DOTALL)[0]).findall(".//{*}title")
    ]
    (imputer,) = [title for title in titles if title.startswith("Impute")]
    assert "fill = [" in imputer


@pytest.mark.parametrize("width", [500, 1000, 1400])
def test_nothing_scrolls_sideways(page: str, width: int, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or pytest.skip("no chromium")
    measure = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    (tmp_path / "page.html").write_text(page.replace("</body>", measure))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", f"--window-size={width},900"]
    command = [browser, *options, f"--user-data-dir={tmp_path}", "--dump-dom", f"file://{tmp_path}/page.html"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    (found,) = re.findall(r"<title>(\d+) of (\d+)</title>", shown)
    assert int(found[0]) <= int(found[1])


def test_numbers_of_layers_rise(page: str) -> None:
    """Each path of a picture goes down, without a step up."""
    for path in re.findall(r"<path d='([^']*)'", page):
        heights = [float(y) for y in re.findall(r"[MCL ](?:-?[\d.]+) (-?[\d.]+)", path)]
        assert all(upper <= lower + 0.11 for upper, lower in pairwise(heights))
