"""The command `hbc`, and `python -m hbc`."""

import os
import signal
import sys
from typing import Any


def main() -> Any:
    """Run the command line. Ctrl-C ends it without a traceback, also while it imports."""
    _open_what_is_closed()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # imports would print its exception, and those of extension modules may lose it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hbc.cli import main as run
    from hbc.cli.score import INTERRUPTED

    try:
        signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _open_what_is_closed() -> None:
    """Opens /dev/null for each of the three standard streams that the caller has closed. A model that is written would get its number
    otherwise, and what a library prints would go into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stderr is None:  # which says whether it is a terminal
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process runs


if __name__ == "__main__":
    main()
