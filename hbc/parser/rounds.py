"""The rounds of boosting that the caller of `hbc.convert` asks for, as the converters of LightGBM and XGBoost read them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hbc.errors import shown

WHERE = "iteration_range"


class Asked:
    """The rounds from `first` to before `end` (0: to the last one), and the ensembles that were cut to them."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        self.cut: list[Any] = []


_asked: ContextVar[Asked | None] = ContextVar("hbc_parser_rounds", default=None)


def checked(given: Any) -> tuple[int, int] | None:
    """(first, end) of the option, or None for all rounds. Raises ValueError for what is no such pair."""
    if given is None:
        return None
    try:
        first, end = map(operator.index, given)
    except (TypeError, ValueError):
        first, end = -1, -1
    if first < 0 or end < 0 or (end and first >= end):
        raise ValueError(
            f"{WHERE}: found {shown(given)}, expected (first, end), such as (0, 50) for the first 50 rounds; end 0 is the last"
        )
    return None if (first, end) == (0, 0) else (first, end)


@contextmanager
def only(asked: tuple[int, int] | None) -> Iterator[None]:
    """A context around all walks through one model, in which its ensemble is cut to these rounds. Raises ValueError if the model has no
    ensemble of LightGBM or XGBoost, or several, of which no one is meant."""
    if asked is None:
        yield
        return
    noted = Asked(*asked)
    token = _asked.set(noted)
    try:
        yield
    finally:
        _asked.reset(token)
    if len(noted.cut) != 1:
        found = "several models" if noted.cut else "no model"
        raise ValueError(f"{WHERE}: found {found} of LightGBM or XGBoost, expected one, whose rounds are counted")


def asked_of(booster: Any, total: int, usual: int | None = None) -> tuple[int, int] | None:
    """(first, end) of the rounds that the caller asks for, of a booster that has `total`. If the caller asks for nothing: (0, `usual`), or
    None without `usual`. Raises ValueError for rounds that the booster does not have."""
    asked = _asked.get()
    if asked is None:
        return None if usual is None else (0, usual)
    if all(booster is not each for each in asked.cut):
        asked.cut.append(booster)
    end = asked.end or total
    if not asked.first < end <= total:
        raise ValueError(f"{WHERE}: found ({asked.first}, {asked.end}), expected rounds of the {total} that the model has")
    return asked.first, end
