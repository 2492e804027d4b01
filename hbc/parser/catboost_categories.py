"""The columns that CatBoost computes from categories before its trees: codes for one-hot splits, and target statistics (CTRs).

A model holds only the hashes of its categories. They are computed again from the strings of the input (hbc.ops.hashed_categories).
A target statistic is a number for each category, or for each combination of several categories and tests of numbers: for example the
share of training rows of this category whose target was 1. Words are CatBoost's; an element is one part of such a combination.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.lazy import cached_property, record
from hbc.ops import tensor as t
from hbc.ops.hashed_categories import HashedValues, HashText, chained
from hbc.parser.frame import Refusal, select_columns

EMPTY = str(2**64 - 1)
"""The hash that CatBoost writes in a slot of a table that is empty."""


Element = tuple[str, int, float]
"""One part of a combination: its kind, the column that it reads, and the category or border that this column is compared with."""


@record
class ValueTable:
    """values[i] (f32[K + 1]) for the combination of `elements` with the hash hashes[i] (i64[K]); the last value is for all others."""

    elements: tuple[Element, ...]
    hashes: Array
    values: Array

    @property
    def key(self) -> tuple[tuple[Element, ...], bytes]:
        """Equal for two tables that can share one search: they have the same elements and the same hashes."""
        return self.elements, self.hashes.tobytes()


@record
class CategoryColumns:
    """Builds the columns that the trees of a model read in place of its categories (`columns`), and numbers them (`test`, `statistic`)."""

    document: dict[str, Any]
    """The JSON of the model."""
    texts: Node
    """The input columns of categories, str[N, C]."""
    numbers: Node | None
    """The input columns of numbers, f32[N, F]; None if there are none."""
    first: int
    """The number of the first column made here: F, since the trees read the numbers before these columns."""
    float_columns: dict[int, tuple[int, bool]]
    """float feature → (its column in `numbers`, whether NaN counts as greater than every border)."""

    @cached_property
    def hashes(self) -> Node:
        """CatBoost's hash of each category. Missing values are rejected."""
        return HashText()(self.texts)

    @cached_property
    def _values(self) -> dict[int, list[int]]:
        """categorical feature → the hashes that its one-hot splits test; features without such splits are absent."""
        features = self.document["features_info"]["categorical_features"]
        return {feature["feature_index"]: feature["values"] for feature in features if feature.get("values")}

    @cached_property
    def _statistics(self) -> list[dict[str, Any]]:
        """The target statistics that the model lists. Raises Refusal if their tables cannot be told apart."""
        found = list(self.document["features_info"].get("ctrs", []))
        if found:
            _require_told_apart(self.document, found)
        return found

    @property
    def n_columns(self) -> int:
        return len(self._values) + len(self._statistics)

    def test(self, split: dict[str, Any]) -> tuple[int, int]:
        """(the column of codes that a one-hot split reads, the code that goes right)."""
        feature = split["cat_feature_index"]
        return self.first + list(self._values).index(feature), self._values[feature].index(split["value"])

    def statistic(self, split: dict[str, Any]) -> int:
        """The column of the statistic that a split compares with its border. Raises Refusal if the model lists no such split.

        The document numbers all possible splits: a split for each border of each float feature, then one for each value of a one-hot
        feature, then one for each border of each statistic (model.cpp: TModelTrees::UpdateRuntimeData)."""
        borders = [feature["borders"] or [] for feature in self.document["features_info"].get("float_features", [])]
        number = split["split_index"] - sum(map(len, (*borders, *self._values.values())))
        for i, ctr in enumerate(self._statistics):
            if 0 <= number < len(ctr["borders"]):
                if ctr["borders"][number] != split["border"]:
                    break
                return self.first + len(self._values) + i
            number -= len(ctr["borders"])
        raise Refusal(f"its split {split} is none of the splits that it lists.")

    def columns(self) -> Node:
        """All columns, f32[N, n_columns]: first the codes, one column for each one-hot feature, then the statistics. A code is the
        position of a category's hash among the values of its feature; a category that is none of V values has the code V."""
        tables = [self._of_values(feature) for feature in self._values] + [self._of_statistic(ctr) for ctr in self._statistics]
        combinations = {table.key: table for table in sorted(tables, key=lambda table: -len(table.elements))}
        distinct = list(combinations.values())
        numbers = {element: i for i, element in enumerate(sorted({e for table in distinct for e in table.elements}))}
        longest = len(distinct[0].elements)
        elements = np.array(
            [[*map(numbers.get, table.elements), *[-1] * (longest - len(table.elements))] for table in distinct], np.int64
        )
        starts = np.cumsum([0, *(len(table.hashes) + 1 for table in distinct)])
        known = np.concatenate([np.append(table.hashes, 0) for table in distinct])
        position = {key: i for i, key in enumerate(combinations)}
        of = np.array([position[table.key] for table in tables])
        values = np.concatenate([table.values for table in tables])
        return HashedValues(elements, known, starts, of, values)(self._elements(list(numbers)))

    def _of_values(self, feature: int) -> ValueTable:
        values = np.array(self._values[feature], np.int64)
        hashes = chained(values[:, None], np.array([[0]]))[0].view(np.int64)
        return ValueTable((("category", feature, 0),), hashes, np.arange(len(values) + 1, dtype=np.float32))

    def _elements(self, elements: Sequence[Element]) -> Node:
        """The elements as numbers, i64[N, E]: the hash of a category, or 0 or 1 for a test. `elements` must be sorted, so that those of
        one kind stand together."""
        blocks = []
        for kind, group in itertools.groupby(elements, key=lambda element: element[0]):
            columns, values = zip(*(element[1:] for element in group), strict=True)
            if kind == "category":
                blocks.append(select_columns(self.hashes, columns))
            elif kind == "category is":
                blocks.append(t.cast(t.equal(select_columns(self.hashes, columns), np.array(values, np.int64)), "i64"))
            else:
                assert self.numbers is not None
                x, borders = select_columns(self.numbers, columns), np.array(values, np.float32)
                greater = t.less(borders, x) if kind == "number is greater" else t.logical_not(t.less_equal(x, borders))
                blocks.append(t.cast(greater, "i64"))
        return t.concat(blocks)

    def _element(self, element: dict[str, Any]) -> Element:
        match element["combination_element"]:
            case "cat_feature_value":
                return "category", element["cat_feature_index"], 0
            case "cat_feature_exact_value":
                return "category is", element["cat_feature_index"], element["value"]
            case "float_feature":
                column, nan_is_greater = self.float_columns[element["float_feature_index"]]
                return "number is greater" + " or NaN" * nan_is_greater, column, element["border"]
        raise Refusal(f"it combines categories with {element['combination_element']!r}, which hbc does not know.")

    def _of_statistic(self, ctr: dict[str, Any]) -> ValueTable:
        found = (self.document.get("ctr_data") or {}).get(ctr["identifier"])
        if found is None:
            raise Refusal(
                "it has no table of one of its target statistics.", "Fit it with final_ctr_computation_mode='Default'."
            )
        entries = np.array(found["hash_map"], object).reshape(-1, found["hash_stride"])
        entries = entries[entries[:, 0] != EMPTY]
        hashes = np.array([int(number) for number in entries[:, 0]], np.uint64).view(np.int64)
        elements = tuple(map(self._element, ctr["elements"]))
        return ValueTable(elements, hashes, _ratios(ctr, entries[:, 1:].astype(np.float64), found["counter_denominator"]))


def _ratios(ctr: dict[str, Any], counts: Array, denominator: int) -> Array:
    """The statistic of each entry of a table counts[K, S], and last that of any combination without an entry: f32[K + 1], computed in
    float32 (static_ctr_provider.cpp: CalcCtrs; online_ctr.h: TModelCtr::Calc). Raises Refusal for an unknown kind of statistic."""
    target, unknown = ctr["target_border_idx"], 0
    match ctr["ctr_type"]:
        case "Borders":
            good, total = counts[:, target + 1 :].sum(1), counts.sum(1)
        case "Buckets":
            good, total = counts[:, target], counts.sum(1)
        case "BinarizedTargetMeanValue" | "FloatTargetMeanValue":
            good, total = counts[:, 0], counts[:, 1]
        case "Counter" | "FeatureFreq":
            unknown = denominator
            good, total = counts[:, 0], np.full(len(counts), denominator)
        case kind:
            raise Refusal(
                f"hbc does not know its target statistic {kind!r}.", "Choose others by simple_ctr and combinations_ctr."
            )
    good, total = (np.append(part, last).astype(np.float32) for part, last in ((good, 0), (total, unknown)))
    keys = ("prior_numerator", "prior_denomerator", "shift", "scale")
    prior, prior_total, shift, scale = (np.float32(ctr[key]) for key in keys)
    values: Array = ((good + prior) / (total + prior_total) + shift) * scale
    return values


SEVERAL_TARGETS = re.compile(r"^Multi(?!Class|Quantile)|^SurvivalAft|UserDefinedMulti|^unknown")
"""Losses with several targets. Each target has its own statistics."""


def _require_told_apart(document: dict[str, Any], statistics: list[dict[str, Any]]) -> None:
    """Raises Refusal if the model can have several tables of one kind and the same elements, because CatBoost writes only one of them.
    It names a table by its kind and elements, but not by the target, or the borders of the target, that the table was made with."""
    options = document["model_info"].get("params", {})
    options = json.loads(options) if isinstance(options, str) else options
    categories = options.get("cat_feature_params")
    if not categories:
        raise Refusal(
            "its file does not say how its target statistics were made.", "Convert a fitted model, not a sum of models."
        )
    of_target = [ctr for ctr in statistics if ctr["ctr_type"] not in ("Counter", "FeatureFreq")]
    keys = ("identifier", "target_border_idx", "prior_numerator", "prior_denomerator", "shift", "scale", "borders")
    twice = len({json.dumps([ctr[key] for key in keys]) for ctr in of_target}) < len(of_target)
    if of_target and (twice or SEVERAL_TARGETS.search(options.get("loss_function", {}).get("type", "unknown"))):
        raise Refusal(
            "it has statistics of several targets, which CatBoost does not tell apart in the files that hbc reads.",
            "Fit it with simple_ctr=['Counter'] and combinations_ctr=['Counter'], or a model for each target.",
        )
    per_feature = (categories.get("per_feature_ctrs") or {}).values()
    for group in (categories.get("simple_ctrs"), categories.get("combinations_ctrs"), *per_feature):
        borders: dict[str, Any] = {}
        for ctr in group or []:
            if borders.setdefault(ctr["ctr_type"], ctr.get("target_binarization")) != ctr.get("target_binarization"):
                raise Refusal(
                    f"it has target statistics {ctr['ctr_type']} of several binarizations of the target, which CatBoost does not tell "
                    "apart in the files that hbc reads.",
                    "Give each kind in simple_ctr, combinations_ctr and per_feature_ctr one TargetBorderCount.",
                )
