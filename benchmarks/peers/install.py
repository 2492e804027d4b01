"""`python -m benchmarks.peers.install [environment ...]`: a virtual environment for each peer that cannot live beside hbc's libraries;
`--missing`: for those that have none yet.

One that fails does not stop the others; its reason is kept, and the benchmark reports it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv

from benchmarks.peers import INSTALLED, NAMES, REQUIREMENTS, failure_of

CONSTRAINTS = REQUIREMENTS.parent.parent / "constraints.txt"
SHARED = ("torch", "lightgbm", "xgboost-cpu", "onnxruntime", "scikit-learn")
"""The libraries that peers get in the version that hbc itself uses, unless a peer's file has an upper bound for it. The other pins are
not for peers: hummingbird-ml excludes hbc's onnx, and onnxruntime's converters its protobuf."""


def main(names: list[str]) -> int:
    """Exit status 1 if any environment could not be installed."""
    if names == ["--missing"]:
        names = [name for name in NAMES if not (INSTALLED / name).exists()]
        return max((not install(name) for name in names), default=0)
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}")
        return 2
    return 1 if [name for name in names or NAMES if not install(name)] else 0


def install(name: str) -> bool:
    """Makes the environment anew. Returns whether that succeeded."""
    folder, failure = INSTALLED / name, failure_of(name)
    shutil.rmtree(folder, ignore_errors=True)
    failure.unlink(missing_ok=True)
    venv.create(folder, with_pip=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins((REQUIREMENTS / f"{name}.txt").read_text(), CONSTRAINTS.read_text())))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--constraint", str(constraints), "--requirement", str(REQUIREMENTS / f"{name}.txt")],
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        failure.write_text(" ".join(errors[-2:]))
    print(f"{name}: {'failed: ' + failure.read_text() if done.returncode else 'installed'}", flush=True)
    return not done.returncode


def pins(requirements: str, constraints: str) -> list[str]:
    """The lines of hbc's constraints that hold for a peer."""
    bounded = {line.partition("<")[0] for line in requirements.splitlines() if "<" in line and ">" not in line}
    return [line for line in constraints.splitlines() if (name := line.partition("==")[0]) in SHARED and name not in bounded]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
