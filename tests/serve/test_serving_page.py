"""The commands of docs/serving.md, and their answers, letter by letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import running, settings

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    text = PAGE.read_text()
    make = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    make = make.replace("fit(X, y)).save", 'fit(X, y), backend="numpy").save')  # tests/test_docs.py compiles it
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(compile(make, PAGE.name, "exec"), {"__name__": "page"})
    finally:
        os.chdir(before)
    ran = 0
    with running(settings(files={"titanic": str(tmp_path / "titanic.hbc")})) as server:
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for command, shown in re.findall(r"^\$ (curl .*)\n((?:[^$].*\n)+)", block, re.MULTILINE):
                there = command.replace("localhost:8000", f"127.0.0.1:{server.port}")
                found = subprocess.run(["bash", "-c", there], capture_output=True, text=True, check=True).stdout
                assert found == shown.rstrip("\n"), command
                ran += 1
    assert ran == 5
