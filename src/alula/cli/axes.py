"""`--batch 1:8:64`, `--length 2:128:512` and `--axis NAME=MIN:OPT:MAX`, parsed once."""

from __future__ import annotations

from collections.abc import Sequence

from alula.core.errors import InputError
from alula.core.profile import Range

LARGEST = 2**31 - 1
"""Of an axis: runtimes count sizes in 32 bits, some of them."""


def parse_axes(batch: str | None, length: str | None, axis: Sequence[str]) -> dict[str, Range]:
    """The ranges given, by axis name; an axis given twice is refused."""
    given = [(name, text) for name, text in (("batch", batch), ("length", length)) if text is not None]
    for item in axis:
        name, equals, text = item.partition("=")
        if not (name and equals):
            raise InputError(f"--axis {item!r}: expected NAME=MIN:OPT:MAX")
        given.append((name, text))
    ranges: dict[str, Range] = {}
    for name, text in given:
        if name in ranges:
            raise InputError(f"axis {name!r} is given twice")
        ranges[name] = parse_range(name, text)
    return ranges


def parse_range(name: str, text: str) -> Range:
    """`MIN:OPT:MAX`, or one number for all three."""
    parts = text.split(":")
    if len(parts) not in (1, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(
            f"axis {name!r}: got {text!r}, expected MIN:OPT:MAX in whole numbers, such as 1:8:64"
        )
    sizes = [parse_size(f"axis {name!r}", part) for part in parts]
    low, opt, high = sizes if len(sizes) == 3 else sizes * 3
    try:
        return Range(low, opt, high)
    except InputError as error:
        raise InputError(f"axis {name!r}: {error}") from error


def parse_size(where: str, digits: str) -> int:
    """A size in ASCII digits, as large as an axis can be."""
    # By length first: Python itself refuses to read thousands of digits.
    if len(digits.lstrip("0")) > len(str(LARGEST)) or int(digits) > LARGEST:
        raise InputError(f"{where}: got {digits}, expected at most {LARGEST}")
    return int(digits)
