"""`python -m benchmarks.peers.install [environment ...]`: a virtual environment for each peer that cannot live beside hbc's libraries.

One that fails does not stop the others; its reason is kept, and the benchmark reports it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv

from benchmarks.peers import INSTALLED, NAMES, REQUIREMENTS, failure_of

CONSTRAINTS = REQUIREMENTS.parent.parent / "constraints.txt"


def main(names: list[str]) -> int:
    """Exit status 1 if any environment could not be installed."""
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
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--constraint", str(CONSTRAINTS), "--requirement", str(REQUIREMENTS / f"{name}.txt")],
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        failure.write_text(" ".join(errors[-2:]))
    print(f"{name}: {'failed: ' + failure.read_text() if done.returncode else 'installed'}", flush=True)
    return not done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
