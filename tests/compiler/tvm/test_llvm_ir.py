"""The text of LLVM's IR between TVM and the object file."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
import tvm_ffi
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LinearRegression
from tvm import tirx

import hbc
from hbc.compiler.tvm.library import export
from hbc.compiler.tvm.run import cache, llvm_ir
from hbc.compiler.tvm.run.llvm_ir import object_of, with_aligned_arrays, without_debug_information, without_uncalled
from hbc.compiler.tvm.run.targets import CHOICE, Machine, without_choices
from hbc.linker.shared_library import shared_library

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)


def test_only_arrays_on_the_stack_change() -> None:
    text = "  %a = alloca [512 x i8], align 16, !dbg !67\n  %b = alloca [6 x ptr], align 8\n  store i8 0, ptr %a, align 16\n"
    expected = text.replace("[512 x i8], align 16", "[512 x i8], align 64")
    assert with_aligned_arrays(text) == expected == with_aligned_arrays(expected)


def test_the_machine_code_is_the_same_without_debug_information(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    monkeypatch.setattr(cache, "object_of", lambda text: texts.append(text) or object_of(text))
    hbc.convert(RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, X[:, 0] > 0)).predict_proba(X)
    (text,) = texts
    stripped = without_debug_information(text)
    assert "dbg" in text
    assert "dbg" not in stripped
    without = object_of(text)
    monkeypatch.setattr(llvm_ir, "without_debug_information", lambda text: text)
    exported = [name for name in cache.EXPORTED if name in stripped]
    assert shared_library(without, exported) == shared_library(object_of(text), exported)

    less = without_uncalled(text)
    assert set(defined(text)) - set(defined(less)) == {"__tvm_ffi_main", "__truncsfhf2", "__extendhfsf2"}
    assert without_uncalled(less) == less
    code = text.replace("entry:\n", "entry:\n  %small = fptrunc double 1.0 to half\n", 1)
    assert without_uncalled(code) == code

    (compiled,) = list(cache._recent.values())[-1:]
    with pytest.raises(TypeError, match="arguments of other types than those of the compiled function"):
        compiled.held(1)


def defined(text: str) -> list[str]:
    return re.findall(r"(?m)^define .*?@(\w+)\(", text)


def test_loops_of_few_values_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM looks for the cheapest addresses in loops only where that pays, and its options do not stay for the next model."""
    texts = []
    monkeypatch.setattr(cache, "object_of", lambda text: texts.append(text) or object_of(text))
    for model in (LinearRegression(), RandomForestClassifier(40, max_depth=6), LinearRegression()):
        cache._alive.clear()
        hbc.convert(model.fit(X, X[:, 0] > 0), target={"kind": "llvm", "mcpu": "haswell"}).predict(X)
    assert ["-disable-lsr" in text for text in texts] == [True, False, True]


def test_loops_of_trees_are_not_unrolled_for_a_zen_3() -> None:
    zen, other = (Machine((("kind", "llvm"), ("mcpu", name))) for name in ("znver3", "haswell"))
    assert dict(zen.rolled_loops.options) == {"kind": "llvm", "mcpu": "znver2"}
    assert other.rolled_loops == other


@pytest.mark.parametrize("module", [cache, export], ids=["own code", "library"])
def test_no_array_of_a_kernel_lies_across_cache_lines(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM puts arrays at multiples of 16 bytes: then the time of a call depends on where the system puts the stack."""
    texts = []
    monkeypatch.setattr(module, "object_of", lambda text: texts.append(text) or object_of(text))
    monkeypatch.setenv("HBC_CACHE", "")
    model = RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, X[:, 0] > 0)
    compiled = hbc.convert(model, strategy="scan", target={"kind": "llvm", "mcpu": "haswell", "mattr": ["+avx2"]})
    if module is export:
        compiled.export(tmp_path / "m.so")
    else:
        compiled.predict_proba(X)
    (text,) = texts
    arrays = re.findall(r"= alloca \[\d+ x (?!ptr).*align (\d+)", text)
    assert set(arrays) == {"64"}


def test_vectors_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number by number, LLVM would have to make vectors of them again, which took most of the time of compiling a scan."""
    texts = []
    monkeypatch.setattr(cache, "object_of", lambda text: texts.append(text) or object_of(text))
    X = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, X[:, 0] * X[:, 1] + X[:, 2] > 0)
    target = {"kind": "llvm", "mcpu": "haswell", "mattr": ["+avx2"], "opt-level": 0}
    hbc.convert(model, strategy="scan", target=target).decision_function(X)
    (text,) = texts
    assert "load <16 x i8>" in text
    assert not re.search(r"extractelement <(16|32|64) x i64>", text)


@pytest.mark.parametrize("transform", [tirx.transform.FlattenBuffer, tirx.transform.LowerIntrin])
def test_passes_that_see_no_choices_make_the_same_code(transform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are faster so, and nothing that they simplify depends on a choice."""
    functions, linked = [], cache._linked

    def link(function: Any, machine: Any) -> Any:
        functions.append((function, machine))
        return linked(function, machine)

    for name, value in {"_linked": link, "_alive": WeakValueDictionary(), "_recent": OrderedDict()}.items():
        monkeypatch.setattr(cache, name, value)
    monkeypatch.setenv("HBC_CACHE", "")
    hbc.convert(RandomForestClassifier(4, max_depth=3, random_state=0).fit(X, X[:, 0] > 0), strategy="scan").predict_proba(X)
    ((function, machine),) = functions
    module = tirx.transform.BindTarget(machine.target)(tvm.IRModule({"f": function}))
    passes = without_choices(transform())
    assert CHOICE in str(passes[0](module))
    assert tvm_ffi.structural_equal(tvm.ir.transform.Sequential(passes)(module), transform()(module), map_free_vars=True)
