"""Documents cut, looked up, hashed and counted by compiled code, against the source and against Python's own strings."""

from __future__ import annotations

import platform
from decimal import Decimal
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer

import hbc
from hbc.compiler.tvm.host.terms import CompiledItems, CompiledTerms, compiled_terms
from hbc.compiler.tvm.run.targets import machine
from hbc.ir.graph import Input
from hbc.ops.vectorizers.analyze import Analyze
from hbc.ops.vectorizers.counting import CountTerms
from hbc.ops.vectorizers.hashing import HashItems, HashTerms
from hbc.ops.vectorizers.strings import pack

TARGETS = (
    [None, *({"kind": "llvm", "mcpu": cpu} for cpu in ("haswell", "x86-64"))] if platform.machine() == "x86_64" else [None]
)
RNG = np.random.default_rng(0)
CHARACTERS = [*"abcdeABC019__  \n\t\u00a0\u3000\x1c.,'-", *"éßİΣςǅ٣\u0301日本😀𝒳²", "  ", " a ", "the"]
WORDS = ["the", "The", "éa", "日本", "a", "I", "x_1", "new", "york", "New", "ΣΑΣ", "İx", "don't", "co-op", "😀"]


def documents(count: int) -> list[str]:
    characters = ["".join(RNG.choice(CHARACTERS, RNG.integers(0, 60))) for _ in range(count // 2)]
    words = [" ".join(RNG.choice(WORDS, RNG.integers(1, 30))) for _ in range(count // 2)]
    return [*characters, *words, "", " ", "a", "the", "x" * 500, "ab", "é"]


VECTORIZERS = [
    CountVectorizer(),
    CountVectorizer(ngram_range=(1, 3), stop_words=["the", "new", "日本"], binary=True),
    CountVectorizer(ngram_range=(2, 2), lowercase=False, token_pattern=r"\b\w+\b"),
    CountVectorizer(token_pattern=r"(?u)\w+", strip_accents="unicode", dtype=np.float32),
    CountVectorizer(analyzer="char", ngram_range=(1, 4), strip_accents="ascii"),
    CountVectorizer(analyzer="char_wb", ngram_range=(2, 5)),
    CountVectorizer(analyzer="char_wb", ngram_range=(1, 1)),
    CountVectorizer(
        vocabulary=["the", "new york", "new  york", "The", "", " ", "\ud800", "y"], ngram_range=(1, 2), lowercase=False
    ),
    TfidfVectorizer(stop_words="english", sublinear_tf=True, max_features=20),
    HashingVectorizer(n_features=50),
    HashingVectorizer(n_features=2**20, ngram_range=(1, 2), alternate_sign=False, norm=None, stop_words=["the"]),
    HashingVectorizer(n_features=1000, analyzer="char", ngram_range=(1, 9), binary=True, norm="l1"),
    HashingVectorizer(n_features=7, analyzer="char_wb", ngram_range=(3, 3), dtype=np.float32, norm=None),
]


@pytest.mark.parametrize("source", VECTORIZERS, ids=range(len(VECTORIZERS)))
def test_as_the_source_counts_them(source) -> None:
    source.fit(documents(100))
    model = hbc.convert(source, "tvm")
    call = CompiledTerms._call
    with mock.patch.object(CompiledTerms, "_call", autospec=True, side_effect=call) as calls:
        for X in (documents(300), ["the new york"], ["plain letters only", "of ASCII"], [""], ["", ""]):
            expected, found = source.transform(X), model.transform(X)
            assert type(found) is type(expected)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            expected.sort_indices()
            np.testing.assert_array_equal(found.indptr, expected.indptr)
            np.testing.assert_array_equal(found.indices, expected.indices)
            np.testing.assert_allclose(found.data, expected.data, rtol=1e-6)
    assert calls.call_count == 5


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("analyzer", ["word", "char", "char_wb"])
@pytest.mark.parametrize("hashed", [False, True])
def test_as_python_cuts_them(analyzer, hashed, target) -> None:
    X = np.array(documents(200), object)
    analyze = Analyze(analyzer, True, None, r"(?u)\b\w\w+\b", 1, 3, *pack(["the", "york"]))
    terms = sorted({term for found in analyze.evaluate(X) for term in found})[::2]
    known = CountTerms(*pack(terms), np.arange(len(terms))[::-1].copy(), len(terms), "i64", False)
    count = HashTerms(300, True, False, "f64") if hashed else known
    where = machine("cpu", target)
    if where.missing is not None:
        pytest.skip(where.missing)
    compiled = CompiledTerms(analyze, count, where)
    expected, found = count.rows_of(analyze.evaluate(X)), compiled.rows_of(X)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
        assert getattr(found, part).dtype == getattr(expected, part).dtype
    assert len(compiled.rows_of(X[:0])) == 0


def test_half_of_a_surrogate_pair_is_left_to_python() -> None:
    source = CountVectorizer(analyzer="char").fit(["a\ud800b"])
    np.testing.assert_array_equal(hbc.convert(source, "tvm").transform(["\ud800a"]).toarray(), [[1, 0, 1]])


def test_other_patterns_are_left_to_python() -> None:
    source = CountVectorizer(token_pattern=r"[a-z]+").fit(["ab1cd", "ef"])
    with mock.patch.object(CompiledTerms, "rows_of", side_effect=AssertionError):
        found = hbc.convert(source, "tvm").transform(["cd2ef ab"])
    np.testing.assert_array_equal(found.toarray(), [[1, 1, 1]])


NAMED = [
    {"a": 1, "é": 2.5, "日本": -3, "": 4, "x" * 300: 0.0, "b": True},
    {},
    {name: float(i) for i, name in enumerate(documents(200))},
    {"a": float("nan"), "c": float("inf")},
    {"a": np.float32(0.1), "b": Fraction(1, 3), "c": Decimal("0.1"), "d": np.int8(-3), "e": 2**70},
    {"a": "1.5", "b": 1.5},
]
PAIRS = [[("a", 1), ("a", 2), ("b", "text"), ("c", 0)], [], [("é\0x", 2), ("d", -1.5)]]


@pytest.mark.parametrize(
    "options", [{}, {"n_features": 9, "alternate_sign": False}, {"n_features": 100, "dtype": np.float32}], ids=str
)
def test_names_are_hashed_as_the_source_does_it(options) -> None:
    dicts = FeatureHasher(**options)
    pairs = FeatureHasher(input_type="pair", **options)
    of_pairs = CompiledItems.of_pairs
    with mock.patch.object(CompiledItems, "of_pairs", autospec=True, side_effect=of_pairs) as calls:
        for source, X in ((dicts, NAMED), (dicts, NAMED[:2]), (pairs, PAIRS), (pairs, PAIRS[:2])):
            expected, found = source.transform(X), hbc.convert(source, "tvm").transform(X)
            expected.sort_indices()
            assert found.dtype == expected.dtype
            for part in ("indptr", "indices", "data"):
                np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
    assert calls.call_count == 4


def test_more_columns_than_memory_has_room_for_are_left_to_python() -> None:
    x = Input("x", "str", ("N",))()
    for count in (HashTerms(2**31 - 1, True, False, "f64"), HashItems(2**31 - 1, True, "f64")):
        terms = Analyze("char", True, None, "", 1, 1, *pack([]))(x) if isinstance(count, HashTerms) else x
        assert compiled_terms(machine("cpu", None))(count(terms)) is None
