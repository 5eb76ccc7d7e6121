"""`--batch 1:8:64`, `--axis NAME=MIN:OPT:MAX` and `--profile batch=1:1:1,length=1:64:128`, parsed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alula.core.errors import InputError
from alula.core.profile import Range

LARGEST = 2**31 - 1
"""Of an axis: runtimes count sizes in 32 bits, some of them."""


def parse_axes(short: Mapping[str, str | None], axis: Sequence[str]) -> dict[str, Range]:
    """The ranges given, by axis name: those of options that are short for an axis, and of `--axis`; none twice."""
    given = [(name, text) for name, text in short.items() if text is not None]
    return _ranges([*given, *(_named(item, "--axis ") for item in axis)])


def parse_profile(text: str) -> dict[str, Range]:
    """`batch=1:1:1,length=1:64:128`, by axis name; `NAME=` before it is for the reader and not kept."""
    first, *others = text.split(",")
    if first.count("=") == 2:
        first = first.partition("=")[2]
    try:
        return _ranges([_named(item.strip()) for item in (first, *others)])
    except InputError as error:
        raise InputError(f"--profile {text!r}: {error}") from error


def _named(item: str, where: str = "") -> tuple[str, str]:
    name, equals, text = item.partition("=")
    if not (name and equals):
        raise InputError(f"{where}{item!r}: expected NAME=MIN:OPT:MAX")
    return name, text


def _ranges(given: Sequence[tuple[str, str]]) -> dict[str, Range]:
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
