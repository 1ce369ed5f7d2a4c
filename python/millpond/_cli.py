"""The ``millpond`` command of the wheel: the same program as the stand-alone binary."""

from __future__ import annotations

import signal
import sys

from millpond import _native


def main() -> None:
    """Run the command line and exit with its status."""
    # The program installs handlers of its own; Python's would only run between byte codes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(_native.run_cli(["millpond", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
