"""Texts: the 20 newsgroups (18,846 messages), or generated ones."""

from __future__ import annotations

import sys

import numpy as np

WORDS, MESSAGES = 50_000, 18_846


def load_newsgroups(download: bool = True) -> list[str]:
    """The messages. Generated where they cannot be downloaded: as long, of words that are as uneven; a few have é."""
    if download:
        from sklearn.datasets import fetch_20newsgroups

        try:
            return list(fetch_20newsgroups(subset="all").data)
        except OSError as error:
            print(f"20 newsgroups: not downloaded ({error}); generating texts of the same length", file=sys.stderr)
    return _generate()


def _generate(seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(1, 12, WORDS)], object)
    words[:: WORDS // 300] += "é"
    ends = np.array([" "] * 12 + [", ", ". ", "\n", "  ", " - ", ": "], object)
    share = 1 / np.arange(3, WORDS + 3)
    share /= share.sum()
    texts = []
    for size in np.clip(rng.lognormal(5, 0.8, MESSAGES), 10, 5000).astype(int):
        chosen = rng.choice(words, size, p=share)
        texts.append("".join(chosen + rng.choice(ends, size)).capitalize())
    return texts
