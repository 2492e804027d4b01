"""Saved models with bytes changed at random, which a process of its own loads and calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MUTATIONS = """
import json, random, sys, warnings
from pathlib import Path
import numpy as np
import hbc
warnings.simplefilter("error")
path, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
data, target = path.read_bytes(), path.with_name("mutated")
rows = np.random.default_rng(0).normal(size=(3, 12))
expected = hbc.load(path, backend="numpy").predict_proba(rows)
read = 0
for seed in range(first, last):
    chance = random.Random(seed)
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, size = chance.randrange(len(found)), chance.choice((1, 1, 2, 4, 30, 500))
        match chance.randrange(7):
            case 0: found[at] ^= 1 << chance.randrange(8)
            case 1: found[at : at + size] = chance.randbytes(len(found[at : at + size]))
            case 2: found[at : at + size] = bytes(len(found[at : at + size]))
            case 3: found[at : at + size] = b"~" * len(found[at : at + size])
            case 4: del found[at : at + size]
            case 5: found[at:at] = found[chance.randrange(len(found)) :][:size]
            case 6: del found[max(at, 1) :]
    target.write_bytes(found)
    try:
        answer = hbc.load(target, backend="numpy").predict_proba(rows)
    except hbc.ArtifactError:
        continue
    read += 1
    assert np.array_equal(answer, expected), seed
# ru_maxrss would begin with the memory of the process that started this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")) if sys.platform == "linux" else "- 0"
print(json.dumps([read, int(peak.split()[1]) * 1024]))
"""


def mutate(script: str, saved: bytes, folder: Path, first: int, last: int) -> tuple[int, int]:
    """(how many of the mutated files were read, the most memory in bytes)."""
    (folder / "m").write_bytes(saved)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "m"), str(first), str(last)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read, memory = json.loads(done.stdout)
    return read, memory
