#!/usr/bin/env python3
"""Makes the same system calls in any folder, and prints a line for each.

    battery.py FOLDER [SECTION...]

A line is `NNN name(arguments) -> answer`. Nothing in it depends on the folder, the run or the
moment. So two runs on one kind of file system print the same, and a diff between two kinds shows
where their answers differ. The battery needs root. It makes a folder for each section.
"""

from __future__ import annotations

import sys

# The folder of a source tree stays as it is.
sys.dont_write_bytecode = True

import attributes  # noqa: E402
import content  # noqa: E402
import names  # noqa: E402
import others  # noqa: E402
from record import Battery  # noqa: E402


def main() -> None:
    """Runs all sections, or those that are named."""
    battery = Battery(sys.argv[1], sys.stdout)
    for section in [*names.SECTIONS, *content.SECTIONS, *attributes.SECTIONS, *others.SECTIONS]:
        if not sys.argv[2:] or section.__name__ in sys.argv[2:]:
            section(battery)
    battery.finish()


if __name__ == "__main__":
    main()
