"""Sizes as all of Millpond takes them: a number of bytes, or a text with a unit."""

from __future__ import annotations

import re

from millpond.errors import InvalidArgument

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**i for i, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", 1)},
    **{letter: 1024**i for i, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def size_bytes(name: str, value: int | str) -> int:
    """Return a size in bytes, from a number or from a text such as ``64KiB`` or ``1.5 GiB``.

    Args:
        name: the name of the argument, for the error.
        value: the size.

    Raises:
        InvalidArgument: the text is not a size.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    factor = _UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise InvalidArgument(
            f"{name}: {value!r} is not a size: write a number and a unit, such as 4096, 64KiB, "
            "1.5GiB or 10GB"
        )
    return int(found[1]) * factor if found[1].isdigit() else int(float(found[1]) * factor)
