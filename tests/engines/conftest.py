"""What the tests of the engines share: a saved model, files of rows, and a worker that is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def imported_by_workers() -> None:
    """Processes that engines start import hbc and the files of this folder."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "engines"), *filter(None, [before])])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    from engine_cases import saved

    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    from engine_cases import parquet

    return parquet(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that is there after a worker of `KilledOnce` has been killed. Engines that start later tell their workers of it."""
    from engine_cases import ROWS, TABLE
    from killing import FATAL, MARK

    mark = tmp_path_factory.mktemp("killed") / "mark"
    os.environ.update({MARK: str(mark), FATAL: str(TABLE["visits"][ROWS * 3 // 4].as_py())})
    return mark
