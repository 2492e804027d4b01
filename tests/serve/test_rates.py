"""The rate of requests, as the processes of a server know it together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hbc.serve import workers
from hbc.serve.repository import Repository
from hbc.serve.statistics import Statistics
from hbc.serve.workers import RATES, Family


@pytest.mark.every_case
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_rates_of_two_processes(tmp_path: Path, monkeypatch: Any, late: float) -> None:
    """One answers 10 a second for 20 seconds, the other 4 for the last 5 of them; then nobody asks. A tick comes somewhat late."""
    now = [0.0]
    monkeypatch.setattr(workers.time, "time", lambda: now[0])
    families = []
    for process in (11, 12):
        repository = Repository({})
        repository._statistics["m", "1"] = Statistics()
        families.append((process, Family(repository, tmp_path)))
    for second in range(1000, 1101):
        for number, (process, family) in enumerate(families):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            now[0] = second + late * number
            counts = family._repository.statistics()["m", "1"]
            counts.success = round(10 * min(max(now[0] - 1040, 0), 20)) if number == 0 else 0
            counts.failure = round(4 * min(max(now[0] - 1055, 0), 5)) if number == 1 else 0
            family.write()
    now[0] = 1100.5
    for process, family in families:
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        rates = family.rates()  # of the seconds from 1039 to 1099
        assert len(rates) == RATES
        assert rates[:1] == [0.0]
        assert rates[2:15] == [10.0] * 13
        assert rates[17:20] == pytest.approx([14.0] * 3, abs=0.6)  # counts are whole
        assert rates[23:] == [0.0] * (RATES - 23)
        assert sum(rates) == pytest.approx(220, abs=0.1 * RATES)


def test_a_process_that_has_just_begun() -> None:
    family = Family(Repository({}))
    assert family.rates() == [0.0] * RATES
    family.write()
    family.write()
    assert family.rates() == [0.0] * RATES
