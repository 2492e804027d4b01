"""The files that the documents name exist, and what docs/artefacts.md shows runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hbc

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:hbc|tests|benchmarks|datasets|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!http|\d)([^)#]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing


def blocks(document: str, language: str) -> list[str]:
    """The examples of a document in a language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model that docs/artefacts.md saves, after all its examples ran."""
    pytest.importorskip("tvm")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("artefacts.md", "python"):
        exec(block, names)
    return tmp_path / "model.hbc"


def test_examples_of_artefacts(saved: Path) -> None:
    assert hbc.load(saved, backend="numpy").info.metadata["run"] == 17


def test_signatures(saved: Path) -> None:
    """Signed with OpenSSF's model_signing, where it is installed. A byte that is changed is noticed."""
    for program in ("openssl", "model_signing"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    (commands,) = blocks("artefacts.md", "bash")
    subprocess.run(["bash", "-e", "-c", commands], check=True)
    verify = commands.splitlines()[-1]
    data = saved.read_bytes()
    for place in (40, len(data) // 2, len(data) - 1):
        saved.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert subprocess.run(["bash", "-c", verify], capture_output=True).returncode != 0
    saved.write_bytes(data)
    subprocess.run(["bash", "-c", verify], check=True)
