"""Every picture and figure of the README and the docs, from the results that are kept in git. Nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import figures, pictures, sentences


def main(arguments: Sequence[str] = ()) -> int:
    figures.write()
    pictures.write()
    sentences.write()
    return 0
