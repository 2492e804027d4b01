"""The table of docs/gpu.md that has counts of whole kernels beside those of their walks alone, against the counts of now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("sklearn")
from cuda_on_cpu.counts import WALKS, counted, data, kinds, models, nvdisasm, source_of, trees_of
from cuda_on_cpu.resources import no_nvcc
from test_tvm_gpu_choice import COUNTED

from hbc.compiler.tvm.trees.gpu.choice import FORMS, H200

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
TABLE = re.search(r"<!-- counts -->\n(.*?)<!-- end counts -->", PAGE.read_text(), re.DOTALL)
LINES = {
    name: (strategy, int(walks.replace(",", "")), int(whole.replace(",", "")))
    for name, strategy, walks, _, whole in re.findall(r"\| (.*?) \| (\w+) \| ([\d,]+) \| (.*?) \| ([\d,]+) \|", TABLE[1])  # type: ignore[index]
}
"""Trees → strategy, M rows/s of the walks, of the whole kernel."""

PRODUCTS = re.search(r"<!-- tensor counts -->\n(.*?)<!-- end tensor counts -->", PAGE.read_text(), re.DOTALL)
LINES_OF_PRODUCTS = {
    (cells[0], cells[1]): [float(cells[i].replace(",", "")) for i in (2, 3, 5, 8, -1)]
    for line in PRODUCTS[1].splitlines()[2:]  # type: ignore[index]
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])
}
"""(trees, strategy) → instructions, ALU, tensor cores, M rows/s of the walks, of the whole kernel."""


def no_disassembler() -> bool:
    try:
        return not nvdisasm()
    except (AttributeError, StopIteration):
        return True


def test_the_costs_were_fitted_to_these_counts() -> None:
    assert len(LINES) == 14
    for name, (strategy, walks, whole) in LINES.items():
        assert walks > whole
        if clocks := COUNTED.get(name.removesuffix(", depth 8, 500 trees"), {}).get(strategy):
            assert abs(whole - H200 / clocks / 1e6) < 1


@pytest.mark.slow
@pytest.mark.skipif(no_nvcc() is not None or no_disassembler(), reason="no nvcc, or no nvdisasm")
@pytest.mark.parametrize("name", LINES)
def test_the_counts_of_the_page(name: str) -> None:
    X, y, rows = data()
    strategy, walks, whole = LINES[name]
    fit = models().get(name) or kinds()[re.sub(r"(, depth 8)?, 500 trees", "", name)]
    model = fit(X, y)
    line = counted(trees_of(model), rows, FORMS[strategy], source_of(model, strategy))
    assert [int(line[WALKS]), int(line[-1])] == pytest.approx([walks, whole], rel=0.01)


def test_products_are_behind_levels() -> None:
    """As the page says, at every depth; nearest at depth 3."""
    shares = []
    for depth in (3, 4, 5):
        name = f"LightGBM, depth {depth}"
        levels, products = (LINES_OF_PRODUCTS[name, strategy] for strategy in ("levels", "int8_gemm"))
        for strategy, line in (("levels", levels), ("int8_gemm", products)):
            assert abs(line[-1] - H200 / COUNTED[name][strategy] / 1e6) < 1
        assert levels[-2] > products[-2]
        shares.append(products[-1] / levels[-1])
    assert 1 > shares[0] > shares[1] > shares[2]
    nearest = (f"{LINES_OF_PRODUCTS['LightGBM, depth 3', strategy][-1]:,.0f}" for strategy in ("int8_gemm", "levels"))
    assert f"nearest at depth 3: {' of '.join(nearest)} M rows/s" in PAGE.read_text()
    assert [*LINES["LightGBM, depth 4"][1:]] == LINES_OF_PRODUCTS["LightGBM, depth 4", "levels"][-2:]


@pytest.mark.slow
@pytest.mark.skipif(no_nvcc() is not None or no_disassembler(), reason="no nvcc, or no nvdisasm")
@pytest.mark.parametrize(("name", "strategy"), LINES_OF_PRODUCTS)
def test_the_counts_of_products(name: str, strategy: str) -> None:
    X, y, rows = data()
    model = models()[name](X, y)
    line = counted(trees_of(model), rows, FORMS[strategy], source_of(model, strategy))
    found = [float(line[i]) for i in (0, 1, 3, WALKS, -1)]
    assert found == pytest.approx(LINES_OF_PRODUCTS[name, strategy], rel=0.01)
