"""A served model that takes arrays and gives arrays: what an ONNX file of no known kind is built to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from alula.batching import Answered
from alula.bundles import Bundle
from alula.core.errors import InputError, ShapeError
from alula.core.profile import admit
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.serve.options import ServeOptions
from alula.serve.outcome import Outcome, answered
from alula.serve.service import Batched, Observe, Run
from alula.serve.weights import within_bytes

ROWS = "batch"
"""The axis of rows that are answered each by itself, where it leads every input and every output."""


class Arrays(Batched[Feeds]):
    """A bundle being served as it is. Requests run together where rows are declared, by the name of their axis.

    What waits in the queue is one row, or, of a model that declares none, all that a request brings.
    """

    def __init__(self, bundle: Bundle, run: Run, options: ServeOptions, observe: Observe) -> None:
        super().__init__(bundle, bundle.model, run, options, observe)
        part = bundle.model.parts[0]
        self._inputs = part.inputs
        self.by_row = all(spec.shape[:1] == (ROWS,) for spec in (*part.inputs, *part.outputs))

    async def answer(self, feeds: Feeds) -> Feeds:
        """What the model gives for the arrays of one request."""
        _refuse_outside(self._inputs, feeds)
        if not self.by_row:
            admit(self._inputs, self._profile, feeds)
            self._admit(1, "requests")
            (outputs,) = await self._queued([feeds], [1])
            return outputs
        count = rows_of(feeds)
        self._admit(count, "rows")
        rows = [{name: array[at : at + 1] for name, array in feeds.items()} for at in range(count)]
        # One row is held to the profile as it is; more of them are cut into what the engine takes.
        least = self._profile.axes[ROWS].min
        admit(self._inputs, self._profile, _again(rows[:1], least))
        return joined(await self._queued(rows, [1] * count))

    async def _call(self, rows: list[Feeds]) -> Answered[Feeds]:
        """Rows of one shape go together, as many as the engine takes; those of a shape that it refuses fail alone."""
        found: dict[int, Feeds] = {}
        failed: dict[int, Exception] = {}
        ran: list[Outcome] = []
        for places in self._alike(rows):
            if error := await self._refused(rows, places, found, ran):
                failed.update(dict.fromkeys(places, error))
        done = answered([found.get(at, {}) for at in range(len(rows))], ran)
        return replace(done, failed=failed)

    def _alike(self, rows: Sequence[Feeds]) -> list[list[int]]:
        """The places of rows that may run together; what a request brings runs alone where no rows are declared."""
        if not self.by_row:
            return [[at] for at in range(len(rows))]
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for at, row in enumerate(rows):
            groups.setdefault(tuple(row[spec.name].shape for spec in self._inputs), []).append(at)
        return list(groups.values())

    async def _refused(
        self, rows: Sequence[Feeds], places: Sequence[int], found: dict[int, Feeds], ran: list[Outcome]
    ) -> InputError | None:
        """Run some rows and put their outputs where they belong, or tell why they are not taken."""
        try:
            if self.by_row:
                await self._group(rows, places, found, ran)
            else:
                ran.append(await self._run(rows[places[0]]))
                found[places[0]] = ran[-1].outputs
        except InputError as error:
            return error
        return None

    async def _group(
        self, rows: Sequence[Feeds], places: Sequence[int], found: dict[int, Feeds], ran: list[Outcome]
    ) -> None:
        """Rows of one shape."""
        sizes = self._sizes(rows[places[0]])
        most = within_bytes(rows[places[0]].values(), self.policy.max_bytes)
        most = max(min(most, self._profile.most(ROWS, sizes)), 1)
        for some in (places[at : at + most] for at in range(0, len(places), most)):
            padded = self._profile.padded({**sizes, ROWS: len(some)}, keep=sizes)[ROWS]
            ran.append(await self._run(_again([rows[at] for at in some], padded)))
            for nth, at in enumerate(some):
                found[at] = {name: array[nth : nth + 1] for name, array in ran[-1].outputs.items()}

    def _sizes(self, row: Feeds) -> dict[str, int]:
        """Of the axes beside that of rows."""
        return {
            dim: size
            for spec in self._inputs
            for dim, size in zip(spec.shape, row[spec.name].shape, strict=True)
            if isinstance(dim, str) and dim != ROWS
        }


def rows_of(feeds: Feeds) -> int:
    """How many rows all arrays have."""
    counts = {name: array.shape[0] if array.ndim else 0 for name, array in feeds.items()}
    if len(set(counts.values())) != 1:
        raise ShapeError(f"inputs have {counts} rows; expected as many of each")
    count = next(iter(counts.values()))
    if count < 1:
        raise InputError("the inputs have no rows; expected at least one")
    return count


def joined(rows: Sequence[Feeds]) -> dict[str, Array]:
    """Rows that are one row high each, as one array for each name."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _again(rows: Sequence[Feeds], count: int) -> dict[str, Array]:
    """The rows as one batch, the last one again where an engine has a smallest batch."""
    return joined([*rows, *[rows[-1]] * (count - len(rows))])


def _refuse_outside(inputs: Sequence[TensorSpec], feeds: Feeds) -> None:
    """Refuse whole numbers that an input is not known to take: some engines answer with what lies behind a table."""
    for spec in inputs:
        array = feeds[spec.name]
        if spec.range is None or array.dtype.kind not in "iu" or not array.size:
            continue
        low, high = spec.range
        if odd := [int(end) for end in (array.min(), array.max()) if not low <= end <= high]:
            raise InputError(f"input {spec.name!r} holds {odd[0]}; the model takes '{spec}'")
