"""What CatBoost computes of categories before its trees: places among the values of one-hot splits, and target statistics (CTRs).

Categories are in a model by their hashes, which are computed again from the strings of the input (hbc.ops.categories).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hbc.ir.graph import Node
from hbc.ir.types import Array
from hbc.ops import tensor as t
from hbc.ops.categories import HashedValues, HashText, chained
from hbc.parser.frame import Refusal, select_columns

EMPTY = str(2**64 - 1)
"""The hash of a place in a table that holds nothing."""


Element = tuple[str, int, float]
"""What a combination is made of: its kind, a column, and the category or the border that this is compared with."""


@dataclass(frozen=True)
class Table:
    """values f32[K + 1] of the combinations of some elements that have the hashes i64[K], and of any other."""

    elements: tuple[Element, ...]
    hashes: Array
    values: Array

    @property
    def key(self) -> tuple[tuple[Element, ...], bytes]:
        """What two tables share if one search serves both."""
        return self.elements, self.hashes.tobytes()


@dataclass(frozen=True)
class Categories:
    """document: the model's JSON; texts: str[N, C], the columns of categories; numbers: f32[N, F], if there are any, whose
    place is before `first`; float_columns: of every float feature its column there, and whether NaN is greater than every border."""

    document: dict[str, Any]
    texts: Node
    numbers: Node | None
    first: int
    float_columns: dict[int, tuple[int, bool]]

    @cached_property
    def _hashes(self) -> Node:
        return HashText()(self.texts)

    @cached_property
    def _values(self) -> dict[int, list[int]]:
        """By feature, the values that one-hot splits test."""
        features = self.document["features_info"]["categorical_features"]
        return {feature["feature_index"]: feature["values"] for feature in features if feature.get("values")}

    @cached_property
    def _statistics(self) -> list[dict[str, Any]]:
        found = list(self.document["features_info"].get("ctrs", []))
        if found:
            _require_told_apart(self.document, found)
        return found

    @property
    def n_columns(self) -> int:
        return len(self._values) + len(self._statistics)

    def test(self, split: dict[str, Any]) -> tuple[int, int]:
        """The column of codes that a one-hot split reads, behind those of numbers, and the code that goes right."""
        feature = split["cat_feature_index"]
        return self.first + list(self._values).index(feature), self._values[feature].index(split["value"])

    def statistic(self, split: dict[str, Any]) -> int:
        """The column of the statistic that a split compares with its border. Splits are numbered: first those of float features by
        their borders, then one-hot splits by their values, then these by theirs (model.cpp: TModelTrees::UpdateRuntimeData)."""
        borders = [feature["borders"] or [] for feature in self.document["features_info"].get("float_features", [])]
        number = split["split_index"] - sum(map(len, (*borders, *self._values.values())))
        for i, ctr in enumerate(self._statistics):
            if 0 <= number < len(ctr["borders"]):
                if ctr["borders"][number] != split["border"]:
                    break
                return self.first + len(self._values) + i
            number -= len(ctr["borders"])
        raise Refusal(f"its split {split} is none of those that it lists.")

    def columns(self) -> Node:
        """The columns that `test` and `statistic` speak of, f32[N, n_columns]: the place of a category among the values of its
        feature (their number where it is none of them), and statistics."""
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
        places = {key: i for i, key in enumerate(combinations)}
        of = np.array([places[table.key] for table in tables])
        values = np.concatenate([table.values for table in tables])
        return HashedValues(elements, known, starts, of, values)(self._elements(list(numbers)))

    def _of_values(self, feature: int) -> Table:
        values = np.array(self._values[feature], np.int64)
        hashes = chained(values[:, None], np.array([[0]]))[0].view(np.int64)
        return Table((("category", feature, 0),), hashes, np.arange(len(values) + 1, dtype=np.float32))

    def _elements(self, elements: Sequence[Element]) -> Node:
        """i64[N, E], in the order of the elements: categories, then tests for one of them, then tests of numbers."""
        blocks = []
        for kind, group in itertools.groupby(elements, key=lambda element: element[0]):
            columns, values = zip(*(element[1:] for element in group), strict=True)
            if kind == "category":
                blocks.append(select_columns(self._hashes, columns))
            elif kind == "category is":
                blocks.append(t.cast(t.equal(select_columns(self._hashes, columns), np.array(values, np.int64)), "i64"))
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

    def _of_statistic(self, ctr: dict[str, Any]) -> Table:
        found = (self.document.get("ctr_data") or {}).get(ctr["identifier"])
        if found is None:
            raise Refusal(
                "it has no table of one of its target statistics.", "Fit it with final_ctr_computation_mode='Default'."
            )
        entries = np.array(found["hash_map"], object).reshape(-1, found["hash_stride"])
        entries = entries[entries[:, 0] != EMPTY]
        hashes = np.array([int(number) for number in entries[:, 0]], np.uint64).view(np.int64)
        elements = tuple(map(self._element, ctr["elements"]))
        return Table(elements, hashes, _ratios(ctr, entries[:, 1:].astype(np.float64), found["counter_denominator"]))


def _ratios(ctr: dict[str, Any], counts: Array, denominator: int) -> Array:
    """f32[K + 1]: the statistic of every entry of a table counts[K, S], and of a combination without one (static_ctr_provider.cpp:
    CalcCtrs; online_ctr.h: TModelCtr::Calc, in float32)."""
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
"""Losses of several targets, each of which has statistics of its own."""


def _require_told_apart(document: dict[str, Any], statistics: list[dict[str, Any]]) -> None:
    """Raise Refusal where there can be several tables of one kind: CatBoost writes only one of them. (It names a table by its kind and
    elements, but not by the target, or the borders of the target, that it was made with.)"""
    options = document["model_info"].get("params", {})
    options = json.loads(options) if isinstance(options, str) else options
    categories = options.get("cat_feature_params")
    if not categories:
        raise Refusal(
            "its file does not say how its target statistics were made.", "Convert a model that was fitted, not added up."
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
