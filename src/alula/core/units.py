"""Amounts of memory and time as people write them: 4GiB, 20m."""

from __future__ import annotations

import re
from collections.abc import Mapping

from alula.core.errors import InputError

# The largest first: in that order one is looked for that an amount is a whole number of.
BYTES: Mapping[str, int] = {
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "B": 1,
}
SECONDS: Mapping[str, int] = {"h": 3600, "m": 60, "s": 1}

LARGEST = 2**63 - 1
"""Of bytes: what runtimes count in."""
LONGEST = 2**31 - 1
"""Of seconds, 68 years: what clocks count in."""

# Few digits: an amount that takes more is none, and Python itself refuses to read thousands of them.
_AMOUNT = re.compile(r"(?P<number>[0-9]{1,12}(\.[0-9]{1,12})?) ?(?P<unit>[A-Za-z]+)")


def parse_bytes(option: str, text: str) -> int:
    """A whole number of bytes, one at least; the unit is needed, since nobody means four bytes by 4."""
    return max(1, int(_parsed(option, text, BYTES, LARGEST, "4GiB")))


def parse_seconds(option: str, text: str) -> float:
    """Seconds, more than none."""
    return _parsed(option, text, SECONDS, LONGEST, "20m")


def bytes_as_text(count: int) -> str:
    """The shortest that `parse_bytes` reads the same number from."""
    return next(f"{count // size}{unit}" for unit, size in BYTES.items() if count % size == 0)


def seconds_as_text(seconds: float) -> str:
    """What `parse_seconds` reads the same from."""
    return next(
        (f"{seconds / size:.0f}{unit}" for unit, size in SECONDS.items() if seconds % size == 0),
        f"{seconds}s",
    )


def _parsed(option: str, text: str, units: Mapping[str, int], most: int, example: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    size = units.get(found["unit"]) if found else None
    if found is None or size is None:
        raise InputError(
            f"{option} {text!r}: expected a number with one of {', '.join(units)}, such as {example}"
        )
    amount = float(found["number"]) * size
    if not 0 < amount <= most:
        raise InputError(
            f"{option} {text!r}: expected more than nothing and at most {most}{[*units][-1]}, such as {example}"
        )
    return amount
