"""What the rows of a data set hold, read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from alula.data.dataset import Dataset, Example

T = TypeVar("T")

KEPT_BYTES = 256 << 20
"""Of what is loaded or decoded, that is kept between runs; the rest is read each time it is asked for."""


class Kept(Sequence[T], Generic[T]):
    """One item a row, read when it is asked for; as many as fit into `KEPT_BYTES` are kept."""

    def __init__(self, data: Dataset, read: Callable[[Example], T], size: Callable[[T], int]) -> None:
        self._data, self._read, self._size = data, read, size
        self._kept: dict[int, T] = {}
        self._room = KEPT_BYTES

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._data.examples)

    def __getitem__(self, at: Any) -> Any:
        """The item of one row."""
        if at in self._kept:
            return self._kept[at]
        item = self._read(self._data.examples[at])
        size = self._size(item)
        if size <= self._room:
            self._kept[at] = item
            self._room -= size
        return item
