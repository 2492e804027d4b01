"""The command `hbc`, and `python -m hbc`."""

import signal
import sys
from typing import Any


def main() -> Any:
    """Run the command line. Ctrl-C ends it without a traceback, also while it imports."""
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


if __name__ == "__main__":
    main()
