"""Caches of a decoder that stay on the GPU: what a step gives lies where the next one takes it.

Where a step gives the new places alone, they are written over the oldest ones, which nobody sees: the bed goes round,
and says where its first place is. What sees all places in any order is told by the mask which of them count.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import TypeAlias

import numpy as np

from alula.core.engine import Plan
from alula.core.errors import RunError
from alula.core.profile import Profile, pick
from alula.core.tensor import Array, Feeds, TensorSpec, axis_sizes
from alula.engines.caches import Held, gives_new, grows, pasts, present, said
from alula.engines.cuda import Buffer, Rows
from alula.engines.tensorrt.lane import MOST_SHAPES, Ends, Lane, Loaded
from alula.engines.tensorrt.scratch import Place
from alula.engines.tensorrt.shapes import Key

ALIGNMENT = 256
"""Where tensors may begin: https://docs.nvidia.com/deeplearning/tensorrt, "bound addresses must be aligned"."""
SPARE = 8
"""Beds that nobody lies in and that are kept with their graphs; beyond, all of them go."""
SOURCES = 8
"""What sequences look at, on the GPU; beyond, the one longest unused goes."""
MASK = "attention_mask"

Halves: TypeAlias = tuple[Buffer, ...]


class Memory:
    """One piece on the GPU that is read and added to, or two halves: a step reads one and writes the other."""

    def __init__(self, halves: Halves) -> None:
        self.halves = halves


@dataclass(frozen=True, kw_only=True, slots=True)
class Bed:
    """Rows of a cache [row, head, place, feature] in one half of a memory; none where it has no places.

    The places of a row go round: the oldest one is at `first`.
    """

    memory: Memory | None
    half: int
    count: int
    width: int
    first: int = 0

    def lies(self, length: int) -> list[tuple[int, int]]:
        """Where the newest places lie, so many of them: from one place up to another, the older ones first."""
        begin = self.first + self.width - length
        if begin >= self.width:
            return [(begin - self.width, self.first)] if length else []
        return [(begin, self.width)] + ([(0, self.first)] if self.first else [])

    def behind(self, new: int) -> Bed:
        """The same with so many new places instead of the oldest."""
        first = (self.first + new) % self.width
        return Bed(memory=self.memory, half=self.half, count=self.count, width=self.width, first=first)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the tensors of a bed lie: one behind another, all of one size, each beginning where tensors may begin."""

    tensors: int
    heads: int
    place_bytes: int

    def row_bytes(self, width: int) -> int:
        """A head of a row."""
        return width * self.place_bytes

    def rows(self, count: int, width: int) -> int:
        """Heads of all rows of a tensor, and as many more as the next one has to wait for."""
        step = _step(self.row_bytes(width))
        return -(-count * self.heads // step) * step

    def tensor_bytes(self, count: int, width: int) -> int:
        """From one tensor to the next."""
        return self.rows(count, width) * self.row_bytes(width)

    def bytes(self, count: int, width: int) -> int:
        """All of them."""
        return self.tensors * self.tensor_bytes(count, width)

    def most_bytes(self, count: int, width: int) -> int:
        """All of them, so wide or narrower: a narrower row may have to have more rows behind it."""
        rows = count * self.heads + _step(self.place_bytes) - 1
        return self.tensors * rows * self.row_bytes(width)


class Beds:
    """The caches of one engine, and a lane for its steps. A step of sizes and places that came before is replayed."""

    def __init__(
        self,
        loaded: Loaded,
        place: Place,
        plan: Plan,
        ends: Ends,
    ) -> None:
        inputs = ends[0]
        self._said = said(ends[1])
        self._cuda, self._plan = place.cuda, plan
        self._inputs, self._past = tuple(inputs), pasts(inputs)
        self._others = tuple(spec for spec in inputs if spec not in self._past)
        self._cross = tuple(spec for spec in inputs if spec.name.startswith("cross."))
        self._axes = tuple(dict.fromkeys(d for spec in inputs for d in spec.shape if isinstance(d, str)))
        _, heads, _, features = self._past[0].shape
        self._layout = Layout(
            tensors=len(self._past),
            heads=int(heads),
            place_bytes=int(features) * np.dtype(loaded.dtype(self._past[0].name)).itemsize,
        )
        kept = (*self._past, *self._cross)
        names = [*(spec.name for spec in kept), *(present(spec.name) for spec in self._past)]
        self._alike: dict[tuple[object, ...], dict[str, int]] = {}
        self._free: dict[int, list[Halves]] = {}
        self._all: set[Halves] = set()
        self._sources: OrderedDict[int, tuple[Feeds, dict[str, Buffer]]] = OrderedDict()
        self._lane = Lane(loaded, place, plan.profiles, ends, names)
        self._new = Buffer(0, 0)
        if gives_new(ends[1]):
            try:
                self._new = place.cuda.malloc(max(map(self._most_new, plan.profiles)))
            except BaseException:
                self._lane.close()
                raise

    def empty(self) -> Bed:
        """One row that holds nothing."""
        return Bed(memory=None, half=0, count=1, width=0)

    def stacked(self, held: Sequence[Held], *, width: int, count: int) -> Bed:
        """Copied on the GPU, by one call for each row."""
        layout = self._layout
        memory = self._memory(layout.bytes(count, width))
        self._cuda.clear(memory.halves[0], self._lane.stream)
        made = Bed(memory=memory, half=0, count=count, width=width)
        for row in range(count):
            each = held[row] if row < len(held) else held[0]
            place = width - each.length
            for begin, end in each.past.lies(each.length) if each.length else ():
                self._cuda.copy_block(
                    self._rows(made, row, place),
                    self._rows(each.past, each.row, begin),
                    ((end - begin) * layout.place_bytes, layout.heads, layout.tensors),
                    self._lane.stream,
                )
                place += end - begin
        return made

    def run(self, feeds: Feeds, past: Bed, cross: Feeds) -> tuple[Array, Bed]:
        """One step; the half that it reads is written by the next."""
        if past.memory is None:
            raise RunError("a step needs places for what it adds; there are none")
        taken = {**feeds, **cross}
        sizes = self._admitted({spec.name: taken[spec.name] for spec in self._others}, past.width)
        into, places = self._given(past, sizes["length"])
        source = self._source(cross) if self._cross else {}
        first = next(iter(source.values()), 0)
        at: Key = (*(sizes[axis] for axis in self._axes), _address(past), into, first)
        lane = self._lane
        if not lane.knows(at):
            shapes = {spec.name: spec.sized(sizes) for spec in self._inputs}
            taken_bytes, given_bytes = (
                self._layout.tensor_bytes(past.count, width) for width in (past.width, places)
            )
            elsewhere = dict(source)
            for index, spec in enumerate(self._past):
                elsewhere[spec.name] = _address(past) + index * taken_bytes
                elsewhere[present(spec.name)] = into + index * given_bytes
            lane.prepare(at, pick(self._plan.profiles, sizes), shapes, elsewhere)
        told = _turned(feeds, past)
        for spec in self._others:
            if spec not in self._cross:
                lane.fill(spec.name, told[spec.name], at)
        replayed = lane.start(at)
        after = self._after(past, sizes["length"])
        lane.wait()
        logits = lane.output(self._said, at).astype(np.float32)
        if not replayed and lane.comes_again(at):
            lane.capture(at)
        return logits, after

    def close(self) -> None:
        """Release the lane, then all memory."""
        self._lane.close()
        buffers = [half for halves in self._all for half in halves]
        buffers += [buffer for _, held in self._sources.values() for buffer in held.values()]
        buffers.append(self._new)
        for buffer in buffers:
            self._cuda.free(buffer)
        self._all.clear()
        self._free.clear()
        self._sources.clear()

    def _admitted(self, given: Feeds, width: int) -> dict[str, int]:
        """The sizes of a step, which are checked when such arrays come first: steps are many, and they are alike."""
        alike = (width, *((array.shape, array.dtype.char) for array in given.values()))
        if alike not in self._alike:
            sizes = {**axis_sizes(self._others, given), "past": width}
            self._plan.profile.check(sizes)
            if len(self._alike) >= MOST_SHAPES:
                self._alike.clear()
            self._alike[alike] = sizes
        return self._alike[alike]

    def _most_new(self, profile: Profile) -> int:
        """The bytes of what a step of this profile may add."""
        return self._layout.most_bytes(profile.axes["batch"].max, profile.axes["length"].max)

    def _given(self, past: Bed, new: int) -> tuple[int, int]:
        """Where a step writes what it gives of the caches, and how many places of a row that is."""
        assert past.memory is not None
        if self._new.size:
            return self._new.address, new
        return past.memory.halves[1 - past.half].address, past.width

    def _after(self, past: Bed, new: int) -> Bed:
        """The bed behind a step that was queued; new places are put over the oldest."""
        if not self._new.size:
            return replace(past, half=1 - past.half)
        layout, added, place = self._layout, past.behind(new), 0
        rows = past.count * layout.heads
        given = Bed(memory=Memory((self._new,)), half=0, count=past.count, width=new)
        for begin, end in added.lies(new):
            self._cuda.copy_block(
                self._rows(added, 0, begin),
                self._rows(given, 0, place),
                ((end - begin) * layout.place_bytes, rows, layout.tensors),
                self._lane.stream,
            )
            place += end - begin
        return added

    def _rows(self, bed: Bed, row: int, place: int) -> Rows:
        """Where a place of a row lies, and what is behind it."""
        layout = self._layout
        return Rows(
            address=_address(bed),
            row_bytes=layout.row_bytes(bed.width),
            rows=layout.rows(bed.count, bed.width),
            byte=place * layout.place_bytes,
            row=row * layout.heads,
        )

    def _memory(self, size: int) -> Memory:
        """One or two halves of so many bytes, which come back by themselves when no bed is in them."""
        halves = self._free[size].pop() if self._free.get(size) else self._made(size)
        memory = Memory(halves)
        weakref.finalize(memory, self._back, size, halves)
        return memory

    def _back(self, size: int, halves: Halves) -> None:
        # Whenever the last bed goes, so nothing may be asked of the GPU here.
        self._free.setdefault(size, []).append(halves)

    def _made(self, size: int) -> Halves:
        if sum(map(len, self._free.values())) > SPARE:
            self._let_go(halves for spare in self._free.values() for halves in spare)
            self._free.clear()
        halves: Halves = (self._cuda.malloc(size),)
        if not self._new.size:
            try:
                halves = (*halves, self._cuda.malloc(size))
            except BaseException:
                self._cuda.free(halves[0])
                raise
        self._all.add(halves)
        return halves

    def _let_go(self, spare: Iterator[Halves]) -> None:
        gone = list(spare)
        self._forget({half.address for halves in gone for half in halves})
        for halves in gone:
            self._all.discard(halves)
            for half in halves:
                self._cuda.free(half)

    def _forget(self, addresses: set[int]) -> None:
        """Let the graphs go that read or write there, once nothing runs."""
        self._lane.wait()
        for at in self._lane.known:
            if addresses.intersection(at[len(self._axes) :]):
                self._lane.forget(at)

    def _source(self, cross: Feeds) -> dict[str, int]:
        """Where the keys and values of a source lie, copied once while the same rows go on."""
        key = id(cross)
        if key not in self._sources:
            held: dict[str, Buffer] = {}
            try:
                for spec in self._cross:
                    array = np.ascontiguousarray(cross[spec.name])
                    held[spec.name] = self._cuda.malloc(array.nbytes)
                    host = Buffer(array.ctypes.data, array.nbytes)
                    self._cuda.copy_in(held[spec.name], host, array.nbytes, self._lane.stream)
                    self._lane.wait()
            except BaseException:
                for buffer in held.values():
                    self._cuda.free(buffer)
                raise
            self._sources[key] = cross, held
        self._sources.move_to_end(key)
        while len(self._sources) > SOURCES:
            _, (_, old) = self._sources.popitem(last=False)
            self._forget({buffer.address for buffer in old.values()})
            for buffer in old.values():
                self._cuda.free(buffer)
        return {name: buffer.address for name, buffer in self._sources[key][1].items()}


@lru_cache(maxsize=MOST_SHAPES)
def _step(row_bytes: int) -> int:
    """After how many rows a tensor may begin again."""
    return ALIGNMENT // gcd(row_bytes, ALIGNMENT)


def keepable(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether these are a decoder's whose caches can stay: no wider after a step than before, and all of one size."""
    past = pasts(inputs)
    return bool(past) and not grows(outputs) and len({(spec.shape, spec.dtype) for spec in past}) == 1


def _address(bed: Bed) -> int:
    return bed.memory.halves[bed.half].address if bed.memory is not None else 0


def _turned(feeds: Feeds, bed: Bed) -> Feeds:
    """What a step is told, its mask [row, past and new places] as the places of a bed lie."""
    if not bed.first:
        return feeds
    mask, width, first = feeds[MASK], bed.width, bed.first
    turned = np.empty_like(mask)
    turned[:, :first] = mask[:, width - first : width]
    turned[:, first:width] = mask[:, : width - first]
    turned[:, width:] = mask[:, width:]
    return {**feeds, MASK: turned}
