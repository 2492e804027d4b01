"""The files that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"`((?:hbc|tests|benchmarks|datasets|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_exist(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert not missing
