"""The peers' environments: one requirements file each, installed by `python -m benchmarks.peers.install` under benchmarks/.peers."""

from __future__ import annotations

import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent
INSTALLED = REQUIREMENTS.parent / ".peers"
NAMES = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def python_of(environment: str) -> Path:
    """The interpreter of an environment; "main" is the one that runs now. Raises FileNotFoundError that says why there is none."""
    if environment == "main":
        return Path(sys.executable)
    python = INSTALLED / environment / "bin" / "python"
    failure = failure_of(environment)
    if failure.exists():
        raise FileNotFoundError(f"its installation failed: {failure.read_text().strip()}")
    if not python.exists():
        raise FileNotFoundError(f"not installed: python -m benchmarks.peers.install {environment}")
    return python


def failure_of(environment: str) -> Path:
    """The file in which the installer writes why an environment could not be installed."""
    return INSTALLED / f"{environment}.failed"
