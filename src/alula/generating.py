"""A bundle whose model writes text, opened: engines fit for this machine, a cache that fits its memory, its words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from alula.bundles import Bundle
from alula.codecs import TextCodec
from alula.core.decoding import Cost, Room
from alula.core.engine import Engine
from alula.core.errors import InputError
from alula.engines import cache_cost, open_decoding, room_left
from alula.generate import Generator, Limits
from alula.local import local_engines

SEQUENCES = 32
"""Answers that are written at once, where nothing else is said."""

WAITING = 1_024

BLOCK_TOKENS = 16
"""Half a block is lost for every sequence, and blocks are counted at every step."""

STEP_TOKENS = 256
"""A step of a running batch takes longer by a prompt of so many tokens. With SmolLM2-135M in ONNX Runtime a prompt of
512 took as much processor time in pieces of 128 or 256 as in one (1.8 seconds to 2.1), and more in pieces of 64."""

CACHE_SHARE, CACHE_MOST = 4, 4 << 30
"""Unasked, a cache takes one part in so many of what is free besides the weights, and no more than this."""


def open_generator(  # noqa: PLR0913 - six, which is as many as a function may have here
    bundle: Bundle,
    *,
    threads: int = 0,
    cache_bytes: int | None = None,
    sequences: int = SEQUENCES,
    waiting: int = WAITING,
    codec: TextCodec | None = None,
) -> Generator:
    """The bundle's engines and tokenizer as one generator, which owns them.

    `cache_bytes` bounds what keys and values take, `sequences` how many answers are written at once and `waiting` how
    many more may stand in line. `codec` is the tokenizer, where it is open already.
    """
    spec = bundle.model
    if not spec.writes:
        raise InputError(f"{bundle.root}: {spec.name} is for task {spec.task!r}, which writes no text")
    codec = codec or TextCodec.open(bundle.tokenizer, spec)
    engines = local_engines(bundle)
    profile = engines["decoder"].plan.profile
    if cache_bytes is None:
        cache_bytes = usual_cache(room_left(engines), sum(_weights(engine) for engine in engines.values()))
    room = room_of(cache_cost(engines), cache_bytes, sequences, profile.holds)
    limits = Limits(
        sequences=room.sequences,
        step_tokens=max(STEP_TOKENS, room.sequences),
        chunk_tokens=STEP_TOKENS,
        block_tokens=room.block_tokens,
        blocks=room.blocks,
        waiting=waiting,
        longest=profile.holds,
    )
    session = open_decoding(engines, room, threads=threads)
    return Generator(session, limits, codec.decode, codec.unsettled)


def usual_cache(free: int | None, weights: int) -> int:
    """What a cache takes where nobody says it, in bytes, of what is free before the weights are loaded. Pure."""
    if free is None:
        return CACHE_MOST
    return min(max(free - weights, 0) // CACHE_SHARE, CACHE_MOST)


def room_of(cost: Cost, cache_bytes: int, sequences: int, longest: int) -> Room:
    """As many sequences as asked, or as half of the bytes are enough for, and blocks for the rest of them. Pure.

    No more blocks than that many sequences can fill. Where not even a block has room, the error says what it takes.
    """
    if cost.sequence_bytes:
        sequences = max(1, min(sequences, cache_bytes // 2 // cost.sequence_bytes))
    block = cost.token_bytes * BLOCK_TOKENS
    blocks = (cache_bytes - sequences * cost.sequence_bytes) // block
    if blocks < 1:
        raise InputError(
            f"{cache_bytes} bytes are too few for a cache; {BLOCK_TOKENS} tokens of one sequence take "
            f"{block + cost.sequence_bytes}: give it more, or run where more memory is free"
        )
    return Room(
        sequences=sequences,
        blocks=min(blocks, sequences * -(-longest // BLOCK_TOKENS)),
        block_tokens=BLOCK_TOKENS,
    )


def _weights(engine: Engine) -> int:
    """What an engine's files take, or its graph's where the engine is the graph."""
    graph = engine.graph.path
    return max(_size(engine.path.rglob("*")), _size(graph.parent.glob(f"{graph.name}*")))


def _size(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())
