"""Documents cut into terms. The operator runs on the host."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import numpy as np

from hbc.ir.graph import Operator, operator
from hbc.ir.types import Array, TensorType, require
from hbc.ops.vectorizers.strings import derived, rejected, require_texts, unpack

_SPACES = re.compile(r"\s\s+")


@operator
class Analyze(Operator):
    """y[N] = the terms of the document x[N], a list of strings in a value of dtype str.

    The document is put into lower case (if `lowercase`), loses its accents (`accents`: "ascii", "unicode" or None), and is cut
    into n-grams of n from `least` to `most`. These are n-grams of the matches of the regular expression `pattern` that are no
    stop words (`analyzer` "word"), or of characters ("char"; "char_wb" within words)
    (sklearn.feature_extraction.text._VectorizerMixin.build_analyzer). Raises InvalidInputError for a document that is no
    string.
    """

    analyzer: str
    lowercase: bool
    accents: str | None
    pattern: str
    least: int
    most: int
    stop: Array
    stop_ends: Array

    def require_sound(self) -> None:
        require_texts(self.stop, self.stop_ends)
        if self.analyzer not in ("word", "char", "char_wb") or self.accents not in ("ascii", "unicode", None):
            raise ValueError(f"the analyzer {self.analyzer!r}, accents {self.accents!r}")
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"the pattern {self.pattern!r:.100} ({error})") from error

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype == "str" and (len(x.shape) == 1 or x.columns == 1), "the operand must be one column of documents")
        return TensorType("str", (x.shape[0],))

    def evaluate(self, x: Array) -> Array:
        documents = self.prepared(x)
        cut = derived(self, self._cut)
        y = np.empty(len(documents), object)
        for i, document in enumerate(documents):
            y[i] = cut(document)
        return y

    def prepared(self, x: Array) -> list[str]:
        """The documents x, in lower case and without accents where the operator says so."""
        documents = x.ravel().tolist()
        if set(map(type, documents)) - {str}:  # else there is no need to look at each
            for item in documents:
                if not isinstance(item, str):
                    raise rejected(item, "a document, which is a string")
        return documents if not self.lowercase and self.accents is None else list(map(self.normalized, documents))

    def normalized(self, document: str) -> str:
        """The document in lower case and without accents where the operator says so."""
        if self.lowercase:
            document = document.lower()
        if self.accents is not None:
            document = _ascii(document) if self.accents == "ascii" else _without_accents(document)
        return document

    def _cut(self) -> Callable[[str], list[str]]:
        cuts = {"char": self._characters, "char_wb": self._characters_within_words}
        return self._words() if self.analyzer == "word" else cuts[self.analyzer]

    def _words(self) -> Callable[[str], list[str]]:
        find = re.compile(self.pattern).findall
        stop = frozenset(unpack(self.stop, self.stop_ends))
        if not stop and self.most == 1:
            return find
        if self.most == 1:
            return lambda document: [word for word in find(document) if word not in stop]
        return lambda document: self._sequences([word for word in find(document) if word not in stop])

    def _sequences(self, words: list[str]) -> list[str]:
        found = list(words) if self.least == 1 else []
        for n in range(max(self.least, 2) if self.least >= 1 else self.least, min(self.most, len(words)) + 1):
            found += [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
        return found

    def _characters(self, document: str) -> list[str]:
        text = _SPACES.sub(" ", document)
        found: list[str] = []
        for n in range(self.least, min(self.most, len(text)) + 1):
            found += [text[i : i + n] for i in range(len(text) - n + 1)] if n != 1 else text
        return found

    def _characters_within_words(self, document: str) -> list[str]:
        found = []
        for word in document.split():
            padded = f" {word} "
            for n in range(self.least, self.most + 1):
                if len(padded) <= n:  # a short word counts once
                    found.append(padded)
                    break
                found += [padded[i : i + n] for i in range(len(padded) - n + 1)]
        return found


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ASCII", "ignore").decode("ASCII")


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join([c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)])
