"""What the models of an engine process may take of the machine's memory together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A model, and what it takes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Budget:
    """So many bytes at most; any number where it is None."""

    most: int | None

    def holds(self, needed: int, held: Iterable[int]) -> bool:
        """Whether there is room for so much beside what is held."""
        return self.most is None or needed + sum(held) <= self.most

    def refusal(self, what: str, needed: int, held: Sequence[Held]) -> str:
        """Why there is none, with the sizes."""
        by_size = sorted(held, key=lambda each: -each.bytes)
        told = ", ".join(f"{each.name} {size(each.bytes)}" for each in by_size) or "nothing"
        more = f"takes {size(needed)}" if needed else "is too much"
        return (
            f"{what} {more}; of --memory {size(self.most or 0)} {size(sum(each.bytes for each in held))} "
            f"are held by {told}: unload one of them, or give more"
        )


def size(count: int) -> str:
    """Bytes as people read them."""
    for unit, factor in UNITS:
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"
