"""Converters for sklearn.feature_extraction and MultiLabelBinarizer, which make matrices of text, dicts and sets. Most results of the
source are sparse: see hbc.ir.rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hbc.ir.graph import Node, gives_rows
from hbc.ir.types import DType
from hbc.ops.tensor import Cast
from hbc.ops.vectorizers.analyze import Analyze
from hbc.ops.vectorizers.counting import CountItems, CountTerms, HoldsLabels
from hbc.ops.vectorizers.hashing import HashItems, HashTerms
from hbc.ops.vectorizers.strings import pack
from hbc.ops.vectorizers.weights import DivideByNorm, Entries, Weigh
from hbc.parser.frame import Frame, Refusal, StringsNeeded, as_matrix, untouched
from hbc.parser.once import read_once
from hbc.parser.registry import Described, Result, converts, describes, takes_items
from hbc.parser.release import since
from hbc.parser.sklearn.encoders import output_dtype
from hbc.parser.sklearn.shared.common import as_float, checked, float_of

COUNT, TFIDF, HASHING = (
    f"sklearn.feature_extraction.text.{name}" for name in ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer")
)
DICTS, HASHER = "sklearn.feature_extraction.DictVectorizer", "sklearn.feature_extraction.FeatureHasher"
SETS = "sklearn.preprocessing.MultiLabelBinarizer"


@describes(COUNT, TFIDF, HASHING, DICTS, HASHER, SETS)
def _one_column(m: Any) -> Described:
    return 1, None


@takes_items(COUNT, TFIDF, HASHING)
def _documents(m: Any) -> str:
    return "documents"


@takes_items(SETS)
def _sets(m: Any) -> str:
    return "sets"


@takes_items(DICTS, HASHER)
def _mappings(m: Any) -> str:
    return "lists" if getattr(m, "input_type", "dict") != "dict" else "dicts"


def _column(x: Node | Frame, objects: bool) -> Node:
    """The column that the source iterates over, str[N], or str[N, 1] from a ColumnTransformer. `objects`: it holds dicts or lists instead
    of documents. Raises Refusal for other columns, and StringsNeeded if the model's input was taken for numbers."""
    frame = x if isinstance(x, Frame) else None
    if frame is not None and objects:
        raise Refusal("it receives columns, but takes a dict or a list for every row.", "Put it first in the pipeline.")
    if frame is not None and len(frame) != 1:
        raise Refusal(f"it is given {len(frame)} columns, where it takes one column of documents.")
    if frame is not None:
        frame.need_strings([0])
        return frame.matrix(strings=True)
    node = as_matrix(x)
    if node.type.dtype != "str":
        raise StringsNeeded([0])
    return node


# --- text ------------------------------------------------------------------------------------------------------------


def _terms(m: Any, x: Node | Frame) -> Node:
    """The terms of each document, as the source's `build_analyzer` finds them. Raises Refusal for options that hold Python functions."""
    for option in ("preprocessor", "tokenizer", "analyzer", "strip_accents"):
        if callable(getattr(m, option)):
            function = getattr(getattr(m, option), "__name__", "a function")
            reason = f"its {option} is a Python function ({function}), which hbc cannot look into."
            raise Refusal(reason, "Apply it to the documents before, and use the options of the vectorizer.")
    if m.input != "content":
        raise Refusal(f"input={m.input!r}: it reads files.", 'Read them before, and use input="content".')
    least, most = m.ngram_range
    if not all(isinstance(n, (int, np.integer)) for n in (least, most)) or not 0 <= least <= most:
        raise Refusal(f"its ngram_range is {m.ngram_range}.", "Use whole numbers, the smaller one first.")
    stop: list[str] = []
    pattern = ""
    if m.analyzer == "word":
        pattern = m.token_pattern
        stop = _stop_words(m.stop_words)
    analyze = Analyze(m.analyzer, bool(m.lowercase), m.strip_accents or None, pattern, int(least), int(most), *pack(stop))
    return analyze(_column(x, objects=False))


def _stop_words(words: Any) -> list[str]:
    if words == "english":
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return sorted(ENGLISH_STOP_WORDS)
    return sorted(word for word in words or () if isinstance(word, str))  # no term of a document equals anything but a string


def _vocabulary(vocabulary: Any) -> tuple[Any, Any, Any]:
    """The terms of a vocabulary {term: column}, packed in the order of their columns, and these columns, i64. Terms that are not strings
    are left out: no document contains them."""
    if not all(isinstance(term, str) for term in vocabulary):
        vocabulary = {term: column for term, column in vocabulary.items() if isinstance(term, str)}
    terms = list(vocabulary)
    columns = np.fromiter(map(int, vocabulary.values()), np.int64, len(terms))
    order = np.argsort(columns, kind="stable")
    return *pack(map(terms.__getitem__, order.tolist())), columns[order]


def _counts(m: Any, x: Node | Frame) -> Node:
    terms, ends, columns = read_once(_vocabulary, m.vocabulary_)
    dtype = output_dtype(m.dtype)
    return CountTerms(terms, ends, columns, len(m.vocabulary_), dtype, bool(m.binary))(_terms(m, x))


@converts(COUNT, frame=True)
def count_vectorizer(m: Any, x: Node | Frame) -> Result:
    return _counts(m, x)


@converts(TFIDF, frame=True)
def tfidf_vectorizer(m: Any, x: Node | Frame) -> Result:
    return _weighted(m._tfidf, _counts(m, x))


@converts("sklearn.feature_extraction.text.TfidfTransformer")
def tfidf_transformer(m: Any, x: Node) -> Result:
    return _weighted(m, x)


def _weighted(m: Any, x: Node) -> Node:
    """TfidfTransformer.transform of the counts x. Like the source's `normalize`, it checks for NaN and ±inf once more after weighting."""
    x = float_of(checked(m, x))
    source = x.inputs[0] if isinstance(x.op, Cast) else x
    if not gives_rows(x) and all(place is not None for place in untouched(source)):
        x = Entries()(x)
    if hasattr(m, "idf_") or m.sublinear_tf:
        idf = np.asarray(m.idf_) if hasattr(m, "idf_") else None
        x = Weigh(idf, bool(m.sublinear_tf))(x)
    return x if m.norm is None else DivideByNorm(m.norm)(checked(m, x))


@converts(HASHING, frame=True)
def hashing_vectorizer(m: Any, x: Node | Frame) -> Result:
    y: Node = HashTerms(int(m.n_features), bool(m.alternate_sign), bool(m.binary), _hashed_dtype(m))(_terms(m, x))
    y = checked(m, y)
    return y if m.norm is None else DivideByNorm(m.norm)(as_float(y))


def _hashed_dtype(m: Any) -> DType:
    dtype = output_dtype(m.dtype)
    if dtype not in ("f32", "f64", "i32", "i64"):
        raise Refusal(f"it computes in its dtype {np.dtype(m.dtype)}.", "Choose float32, float64, int32 or int64.")
    return dtype


# --- dicts and lists -------------------------------------------------------------------------------------------------


@converts(HASHER, frame=True)
def feature_hasher(m: Any, x: Node | Frame) -> Result:
    width, dtype = int(m.n_features), _hashed_dtype(m)
    column = _column(x, objects=True)
    if m.input_type == "string":
        return checked(m, HashTerms(width, bool(m.alternate_sign), False, dtype)(column))
    if dtype not in ("f32", "f64"):
        raise Refusal(f"its dtype is {np.dtype(m.dtype)}, to which it rounds every value.", "Choose float32 or float64.")
    return checked(m, HashItems(width, bool(m.alternate_sign), dtype)(column), allow_nan=True, allow_inf=True)


@converts(DICTS, frame=True)
def dict_vectorizer(m: Any, x: Node | Frame) -> Result:
    if not isinstance(m.separator, str):
        raise Refusal(f"its separator is {m.separator!r}.", "Use a string.")
    strange = [name for name in m.vocabulary_ if not isinstance(name, str)]
    if strange:
        raise Refusal(f"its feature {strange[0]!r:.60} is not a string.", "Use strings as the keys of the dicts.")
    dtype = output_dtype(m.dtype)
    if not (isinstance(m.dtype, (type, np.dtype)) and issubclass(np.dtype(m.dtype).type, np.floating)):
        raise Refusal(f"its dtype is {m.dtype!r}, to which it converts every value.", "Choose numpy.float32 or numpy.float64.")
    terms, ends, columns = read_once(_vocabulary, m.vocabulary_)
    index: DType = "i64" if since(1, 9) else "i32"
    y = CountItems(terms, ends, columns, len(m.vocabulary_), dtype, m.separator, index)(_column(x, objects=True))
    return checked(m, y, allow_nan=True, allow_inf=True)


@converts(SETS, frame=True)
def multi_label_binarizer(m: Any, x: Node | Frame) -> Result:
    """`transform` has a column for each label: 1 if the row's set holds it. Labels are compared like the keys of a dict, so that 1, 1.0
    and True are the same."""
    texts: dict[str, int] = {}
    integers: dict[int, int] = {}
    floats: dict[float, int] = {}
    for column, label in enumerate(m.classes_.tolist()):
        if isinstance(label, str):
            texts[label] = column
        elif isinstance(label, (int, np.integer, np.bool_)) and -(2**63) <= int(label) < 2**63:
            integers[int(label)] = column
        elif isinstance(label, (float, np.floating)) and label == label:
            floats[float(label)] = column
        else:
            raise Refusal(f"its label {label!r:.60} is of type {type(label).__name__}.", "Use strings or numbers as labels.")
    columns = np.array([*texts.values(), *integers.values(), *floats.values()], np.int64)
    numbers = np.array(list(integers), np.int64), np.array(list(floats), np.float64)
    return checked(m, HoldsLabels(*pack(texts), *numbers, columns)(_column(x, objects=True)), min_rows=0)
