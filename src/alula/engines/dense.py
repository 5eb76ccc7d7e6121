"""A decoding session on any engine that is given its past and gives it back: the cache is arrays, side by side.

The rows of a call stay together while the same sequences go on: what the decoder gives is what it takes next. Rows
are copied only where one joins or leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from alula.core.decoding import NOTHING_GIVEN, Cost, Logits, Room, Work
from alula.core.engine import Engine, Session
from alula.core.errors import InputError, RunError
from alula.core.profile import Profile
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines.caches import caches_of, grows, pasts, present
from alula.engines.rows import Ints, Rows, partition, side_by_side
from alula.engines.sights import Sights

DECODER, ENCODER, CROSS = "decoder", "encoder", "cross"
PARTS = ({DECODER}, {ENCODER, CROSS, DECODER})

NARROWEST = 64
"""Places of a cache that comes back as wide as it went in; it is doubled when it is full, so that widths repeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A part of a model that can run, and the sizes it was built for."""

    session: Session
    profile: Profile


class Dense:
    """Sequences in rows of arrays; an encoder before the decoder runs once for each."""

    def __init__(self, parts: Mapping[str, Loaded], room: Room) -> None:
        if set(parts) not in PARTS:
            raise InputError(f"parts {sorted(parts)}; expected {' or '.join(str(sorted(p)) for p in PARTS)}")
        self.room = room
        self._parts = dict(parts)
        self._decoder = parts[DECODER]
        inputs, outputs = self._decoder.session.inputs, self._decoder.session.outputs
        past, self._cross = _checked(inputs, "past"), _checked(inputs, CROSS)
        self.vocabulary = _vocabulary(outputs)
        given = {spec.name for spec in outputs}
        if lacking := [spec.name for spec in past if present(spec.name) not in given]:
            raise InputError(f"the decoder takes {lacking[0]!r} and gives no {present(lacking[0])!r}")
        self._most_new = self._decoder.profile.most("length", {})
        self._sights = Sights.of(inputs)
        self._caches, self._grows = caches_of(self._decoder.session), grows(outputs)
        self._where: dict[int, Rows] = {}
        self._lost: set[int] = set()
        self._together: frozenset[int] = frozenset()

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        """Begin a sequence; where there is an encoder, it reads "input_ids" [1, source] of what is given now.

        A decoder that sees is given the rows of images, which tokens they stand for, and the places of all tokens.
        """
        self._refuse_closed()
        if sequence in self._where or sequence in self._lost:
            raise RunError(f"sequence {sequence} was started already")
        if len(self._where) + len(self._lost) >= self.room.sequences:
            raise RunError(f"sequence {sequence} is one too many; there is room for {self.room.sequences}")
        if self._sights is not None:
            self._sights.start(sequence, given)
            given = NOTHING_GIVEN
        source, cross = self._read(given)
        self._where[sequence] = Rows(
            members=(sequence,),
            lengths=(0,),
            sources=(source,),
            width=0,
            source=source,
            count=1,
            past=self._caches.empty(),
            cross=cross,
        )

    def step(self, work: Sequence[Work]) -> Logits:
        """Run the tokens: all who have one at once, prompts with those that are as long and as far.

        Whoever has one token runs first, so that rows of the released are gone before a prompt needs room.
        """
        self._admit(work)
        told: list[tuple[tuple[int, ...], Logits]] = []
        try:
            for members, tokens in self._calls(work):
                told.append((members, self._run(members, tokens)))
            self._tidy()
        except BaseException:
            self._lose([each.sequence for each in work])
            raise
        return _answers(told, tuple(each.sequence for each in work if each.answers), self.vocabulary)

    def release(self, sequence: int) -> None:
        """Forget a sequence; its row goes when rows are copied next, or with the last of its neighbours."""
        self._where.pop(sequence, None)
        self._lost.discard(sequence)
        self._together -= {sequence}
        if self._sights is not None:
            self._sights.release(sequence)

    def close(self) -> None:
        """Close the parts and forget all sequences."""
        for part in self._parts.values():
            part.session.close()
        self._parts.clear()
        self._where.clear()

    def _refuse_closed(self) -> None:
        if not self._parts:
            raise RunError("session is closed")

    def _read(self, given: Feeds) -> tuple[int, Feeds]:
        """How many tokens a source has, and the keys and values that the decoder looks at of it."""
        expected = ["input_ids"] if ENCODER in self._parts else []
        if sorted(given) != expected:
            raise InputError(f"a sequence is given {sorted(given)}, expected {expected}")
        if not expected:
            return 0, NOTHING_GIVEN
        ids = given["input_ids"]
        if ids.ndim != 2 or len(ids) != 1 or not ids.size or ids.dtype != np.int64:
            raise InputError(f"input_ids is {ids.dtype} {ids.shape}, expected int64 [1, source]")
        feeds: Feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        for name in (ENCODER, CROSS):
            part = self._parts[name]
            sizes = part.profile.padded({"batch": 1, "source": ids.shape[1]})
            taken = {spec.name: _at_least(feeds[spec.name], sizes) for spec in part.session.inputs}
            feeds = part.session.run(taken)
        return ids.shape[1], {
            spec.name: feeds[spec.name][:1, :, : ids.shape[1]].copy() for spec in self._cross
        }

    def _admit(self, work: Sequence[Work]) -> None:
        """Refuse, before anything runs, what was not started, what has no room and what the decoder cannot hold."""
        self._refuse_closed()
        new = {each.sequence: len(each.tokens) for each in work}
        assert len(new) == len(work), "a sequence is named twice"
        assert all(new.values()), "a sequence has no tokens to run"
        for sequence in new:
            if sequence in self._lost:
                raise RunError(f"sequence {sequence} was lost in an error; release it and start it again")
            if sequence not in self._where:
                raise RunError(f"sequence {sequence} was not started")
        tokens = {each: self._length(each) + new.get(each, 0) for each in self._where}
        blocks = sum(-(-count // self.room.block_tokens) for count in tokens.values())
        if blocks > self.room.blocks:
            raise RunError(
                f"the step takes {blocks} blocks of the cache; there is room for {self.room.blocks}"
            )
        longest = max(new, key=tokens.__getitem__, default=None)
        most = self._decoder.profile.axes["total" if self._grows else "past"].max
        if longest is not None and tokens[longest] > most:
            raise RunError(
                f"sequence {longest} would hold {tokens[longest]} tokens; the decoder takes {most} at most"
            )

    def _calls(self, work: Sequence[Work]) -> Iterator[tuple[tuple[int, ...], Ints]]:
        """Who shares a call, and the tokens of each."""
        tokens = {each.sequence: each.tokens for each in work}

        def call(members: Sequence[int]) -> tuple[tuple[int, ...], Ints]:
            rows = self._where[members[0]]
            if self._are(rows, members):
                members = rows.members  # in the order they lie in
            return tuple(members), np.array([tokens[member] for member in members], np.int64)

        going = [each.sequence for each in work if len(each.tokens) == 1]
        for members in self._neighbours(going):
            yield call(members)
        alike: dict[tuple[int, int], list[int]] = {}
        for each in work:
            if len(each.tokens) > 1:
                alike.setdefault((len(each.tokens), self._length(each.sequence)), []).append(each.sequence)
        for (new, length), group in alike.items():
            most = self._most_rows(length, new)
            for at in range(0, len(group), most):
                yield call(group[at : at + most])

    def _neighbours(self, going: Sequence[int]) -> list[tuple[int, ...]]:
        """Those that go on by one token, in calls: as they lie, while they are the same and padding has room."""
        if not going:
            return []
        others = sum(self._length(each) for each in self._where if each not in going)
        cells = self.room.tokens - others
        lying = list({id(rows): rows for rows in map(self._where.__getitem__, going)}.values())
        if self._together == frozenset(going) and all(self._are(rows, rows.members) for rows in lying):
            taken = sum(len(rows.members) * (max(rows.lengths) + 1) for rows in lying)
            if taken <= cells:
                return [rows.members for rows in lying]
        self._together = frozenset(going)
        lengths = [self._length(each) + 1 for each in going]
        most = self._most_rows(max(lengths) - 1, 1)
        return [tuple(going[at] for at in group) for group in partition(lengths, cells=cells, rows=most)]

    def _run(self, members: tuple[int, ...], tokens: Ints) -> Logits:
        """The logits of each one's last token; in several calls where the decoder does not take so many at once."""
        at = 0
        while at < tokens.shape[1]:
            size, rows = self._placed(members, tokens.shape[1] - at)
            logits = self._call(rows, tokens[:, at : at + size])
            at += size
        return logits

    def _call(self, rows: Rows, tokens: Ints) -> Logits:
        new = tokens.shape[1]
        feeds: dict[str, Array] = {**rows.feeds(tokens), "answers": np.array([new - 1])}
        if self._cross:
            feeds["encoder_attention_mask"] = rows.source_mask()
        if self._sights is not None:
            feeds |= self._sights.squared(rows.members, rows.lengths, new, rows.count)
        given, past = self._caches.run(feeds, rows.past, rows.cross)
        grown = rows.grown(new, past, rows.width + new * self._grows)
        self._where.update(dict.fromkeys(rows.members, grown))
        logits: Logits = np.asarray(given[: len(tokens), -1], np.float32)
        return logits

    def _placed(self, members: tuple[int, ...], left: int) -> tuple[int, Rows]:
        """How many of the tokens left run now, and the members side by side as the decoder takes them."""
        rows = self._where[members[0]]
        length = max(self._length(each) for each in members)
        source = max(self._where[each].source_of(each) for each in members)
        together = self._are(rows, members)
        for new in dict.fromkeys((left, min(left, self._most_new), 1)):
            holds = self._grows or length + new <= rows.width
            if together and holds and self._takes(rows.count, new, rows.width, rows.source):
                return new, rows
            sizes = self._least(len(members), new, length, source)
            if sizes is not None:
                picks = [(self._where[each], each) for each in members]
                wide = sizes.get("source", 0)
                width, count = sizes["past"], sizes["batch"]
                return new, side_by_side(self._caches, picks, width=width, source=wide, count=count)
        raise RunError(
            f"{len(members)} sequences with up to {length} tokens in the cache: not taken by the decoder, "
            f"which was built for {self._decoder.profile}"
        )

    def _tidy(self) -> None:
        """Copy those out whose neighbours are gone or elsewhere."""
        for rows in {id(rows): rows for rows in self._where.values()}.values():
            left = [each for each in rows.members if self._where.get(each) is rows]
            if len(left) < len(rows.members):
                width, source = max(map(rows.length_of, left)), max(map(rows.source_of, left))
                width = width if self._grows else rows.width
                picks = [(rows, each) for each in left]
                kept = side_by_side(self._caches, picks, width=width, source=source, count=len(left))
                self._where.update(dict.fromkeys(left, kept))

    def _lose(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._where.pop(sequence, None)
            self._lost.add(sequence)

    def _are(self, rows: Rows, members: Sequence[int]) -> bool:
        """Whether these rows are of these sequences, of all of them and of no other."""
        return len(members) == len(rows.members) and all(self._where.get(each) is rows for each in members)

    def _length(self, sequence: int) -> int:
        return self._where[sequence].length_of(sequence)

    def _most_rows(self, length: int, new: int) -> int:
        """How many rows a call may have; with 1 it is known before it runs what is not taken."""
        new = min(new, self._most_new)
        sizes = self._sizes(None, new, self._width(length, new), None)
        return max(1, self._decoder.profile.most("batch", sizes))

    def _width(self, length: int, new: int) -> int:
        """The places of a past that a call takes and has room in; the next ones repeat it where it does not grow."""
        if self._grows:
            return length
        most = self._decoder.profile.axes["past"].max
        return max(min(_doubled(length + new), most), length + new)

    def _takes(self, rows: int, new: int, width: int, source: int) -> bool:
        return self._decoder.profile.takes(self._sizes(rows, new, width, source))

    def _least(self, rows: int, new: int, length: int, source: int) -> dict[str, int] | None:
        """The least sizes that hold these rows and that the decoder takes."""
        found = []
        for part in self._decoder.profile.parts:
            axes = part.axes
            width = max(self._width(length, new), axes["past"].min, axes["total"].min - new)
            wide = max(source, axes["source"].min) if self._cross else 0
            sizes = self._sizes(max(rows, axes["batch"].min), new, width, wide)
            if part.takes(sizes):
                found.append(sizes)
        return min(found, key=lambda sizes: prod(sizes.values()), default=None)

    def _sizes(self, rows: int | None, new: int, width: int, source: int | None) -> dict[str, int]:
        """The axes of a call, as far as they are known."""
        sizes = {"batch": rows, "length": new, "past": width, "total": width + new, "answers": 1}
        if self._cross:
            sizes["source"] = source
        return {axis: size for axis, size in sizes.items() if size is not None}


def _answers(
    told: Sequence[tuple[tuple[int, ...], Logits]], answering: tuple[int, ...], vocabulary: int
) -> Logits:
    """The rows of those who answer; the call's own array where all who ran together do, which is megabytes."""
    if len(told) == 1 and told[0][0] == answering:
        return told[0][1]
    rows = {member: row for members, logits in told for member, row in zip(members, logits, strict=True)}
    return (
        np.stack([rows[each] for each in answering]) if answering else np.empty((0, vocabulary), np.float32)
    )


def cost(engines: Mapping[str, Engine]) -> Cost:
    """What the cache of a dense session takes.

    Twice its arrays: what a call is given lies beside what it gives, as rows do beside those they are copied from. A
    source is reckoned as long as the engine takes it. A past that comes back as wide has the least width, or less than
    twice the places that it needs.
    """
    decoder = engines[DECODER]
    past, cross = pasts(decoder.inputs), _checked(decoder.inputs, CROSS)
    longest = decoder.plan.profile.axes["source"].max if cross else 0
    token, source = (2 * sum(_bytes(each, size) for each in of) for of, size in ((past, 1), (cross, longest)))
    if grows(decoder.outputs):
        return Cost(token_bytes=token, sequence_bytes=source)
    return Cost(token_bytes=2 * token, sequence_bytes=source + NARROWEST * token)


def _bytes(spec: TensorSpec, places: int) -> int:
    """What one row of keys or values takes."""
    return prod(spec.sized({"batch": 1, "past": places, "source": places})) * np.dtype(spec.dtype).itemsize


def _checked(inputs: Sequence[TensorSpec], kind: str) -> tuple[TensorSpec, ...]:
    """The inputs that are keys and values of one kind."""
    axis = {"past": "past", CROSS: "source"}[kind]
    found = tuple(spec for spec in inputs if spec.name.startswith(f"{kind}."))
    for spec in found:
        if len(spec.shape) != 4 or spec.shape[0] != "batch" or spec.shape[2] != axis:
            raise InputError(f"the decoder takes {spec}, expected [batch,heads,{axis},features]")
    if kind == "past" and not found:
        raise InputError("the decoder takes no past: no input is named past.0.key or the like")
    return found


def _vocabulary(outputs: Sequence[TensorSpec]) -> int:
    found = next((spec for spec in outputs if spec.name == "logits"), None)
    if found is None or not isinstance(found.shape[-1], int):
        raise InputError(
            f"the decoder gives {found or 'no logits'}, expected logits of a fixed number of tokens"
        )
    return found.shape[-1]


def _doubled(places: int) -> int:
    """The width that holds so many, `NARROWEST` or that doubled several times."""
    return NARROWEST * (1 << max(0, (places - 1) // NARROWEST).bit_length())


def _at_least(array: Array, sizes: Mapping[str, int]) -> Array:
    """One row of an array [1, source, ...], repeated and padded to these sizes."""
    wide = np.zeros((sizes["batch"], sizes["source"], *array.shape[2:]), array.dtype)
    wide[:, : array.shape[1]] = array[:1]
    return wide
