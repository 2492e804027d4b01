"""The program of a worker, which `parent.Parent` runs. Its keeper starts before the rest is imported: it has what is in memory then."""

from __future__ import annotations

import json
import socket
import sys

from hbc.serve.keeper import start


def main(control_number: int) -> None:
    """Hear from the parent what to do, start the keeper if there shall be one, and serve."""
    control = socket.socket(fileno=control_number)
    line = b""
    while not line.endswith(b"\n"):
        part = control.recv(1)  # byte by byte: what follows the line is for later
        if not part:
            return
        line += part
    told = json.loads(line)
    memory = start(told, control) if told["inbox"] else None
    from hbc.serve.process import work

    work(control, told, memory)


if __name__ == "__main__":
    main(int(sys.argv[1]))
