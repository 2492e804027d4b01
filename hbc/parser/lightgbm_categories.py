"""Which columns of a training frame had the categories that a LightGBM model keeps.

The model has a list of categories for each column of pandas categories, in the order of these columns (`pandas_categorical`), but not their
numbers. It has two traces of them. The parameter `categorical_feature` has the columns in which LightGBM tests sets: these are the columns
of unordered categories, unless the caller of `fit` has named others. And the range of a column (`feature_infos`) has its codes, `2:0:1`, if
it is such a column, and otherwise the least and the largest number, `[0:2]`, or `none` if all its values were alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hbc.lazy import record
from hbc.parser.frame import Frame, Refusal
from hbc.parser.front_door import columns_in_sample

ADVICE = "Pass such a frame as the sample, with its categories: hbc.convert(model, backend, X)."


@record
class Found:
    """The columns of the categories."""

    columns: tuple[int, ...]
    """For each list of categories its column."""
    certain: bool
    """Whether nothing that the model says fits other columns as well."""


def are_texts(categories: Sequence[Any]) -> bool:
    """Whether all of a list of categories are strings, which the graph looks up."""
    return all(isinstance(category, str) for category in categories)


def columns_of_categories(stored: Sequence[Sequence[Any]], model: Any, x: Frame) -> Found | None:
    """The columns of x that had the categories `stored`. They are those of the sample, if that has categories, or else those that fit what
    `model` says (lightgbm.Model). None if they are not known and need not be, since every category is its own place. Raises Refusal."""
    if not stored:
        return Found((), True)
    for categories in stored:
        if others := [value for value in categories if not isinstance(value, (bool, int, float, str))]:
            reason = f"a column of its training frame has categories of the type {type(others[0]).__name__}."
            raise Refusal(reason, "Give the column strings or numbers as categories.")
        if any(isinstance(value, float) and value - value != 0 for value in categories):
            raise Refusal("a column of its training frame has infinity as a category.", "Give the column other categories.")
    sampled = columns_in_sample(x)
    if sampled is not None and len(sampled) == len(stored):
        return Found(tuple(sampled), True)
    texts = [i for i, dtype in enumerate(x.dtypes) if dtype == "str"]
    if texts and len(texts) == len(stored) and all(map(are_texts, stored)):
        return Found(tuple(texts), True)
    ranges, declared = model.header["feature_infos"].split(" "), model.declared
    if declared is None:
        declared = {i for i, values in enumerate(ranges) if values != "none" and not values.startswith("[")}
    fitting = [[i for i, values in enumerate(ranges) if _fits(values, len(categories), i in declared)] for categories in stored]
    ways, first = _ascending(fitting, len(ranges))
    usual = tuple(sorted(declared))
    if len(usual) == len(stored) and all(i in columns for i, columns in zip(usual, fitting, strict=True)):
        return Found(usual, ways == 1)
    if ways == 1:
        return Found(first, True)
    if all(list(categories) == list(range(len(categories))) for categories in stored):
        return None
    count = f"{len(stored)} column{'s' * (len(stored) > 1)}"
    found = f"{'several' if ways else 'no'} columns fit what it says of them"
    raise Refusal(f"it was fitted on a frame with categories in {count}, and does not say in which: {found}.", ADVICE)


def _fits(values: str, count: int, declared: bool) -> bool:
    """Whether a column with the range `values` can have held `count` categories."""
    if values == "none":
        return True
    if values.startswith("["):
        least, largest = map(float, values[1:-1].split(":"))
        return not declared and least >= 0 and largest < count and least.is_integer() and largest.is_integer()
    return max(map(int, values.split(":"))) < count


def _ascending(choices: Sequence[Sequence[int]], count: int) -> tuple[int, tuple[int, ...]]:
    """(in how many ways one of each list can be taken so that they ascend: 0, 1, or 2 for more; the first of these ways). The lists are of
    the numbers below `count`."""
    ways = [1] + [0] * len(choices)
    for i in range(count):
        for k in range(len(choices), 0, -1):
            if i in choices[k - 1]:
                ways[k] = min(ways[k] + ways[k - 1], 2)
    first: list[int] = []
    for columns in choices if ways[-1] else ():
        first.append(next(i for i in columns if not first or i > first[-1]))
    return ways[-1], tuple(first)
