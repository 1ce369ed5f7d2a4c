#!/usr/bin/env python3
"""Makes the same system calls in any folder, and prints a line for each.

    battery.py FOLDER [SECTION...]

A line is `NNN name(arguments) -> answer`. It does not depend on the folder, the run or the time.
So two runs on one kind of file system print the same lines, and a diff between two kinds shows
different answers. The battery needs root. It makes a folder for each section.
"""

from __future__ import annotations

import sys

# No bytecode is written to the source tree.
sys.dont_write_bytecode = True

import attributes  # noqa: E402
import content  # noqa: E402
import names  # noqa: E402
import others  # noqa: E402
from record import Battery  # noqa: E402


def main() -> None:
    """Runs all sections, or the given ones."""
    battery = Battery(sys.argv[1], sys.stdout)
    for section in [*names.SECTIONS, *content.SECTIONS, *attributes.SECTIONS, *others.SECTIONS]:
        if not sys.argv[2:] or section.__name__ in sys.argv[2:]:
            section(battery)
    battery.finish()


if __name__ == "__main__":
    main()
