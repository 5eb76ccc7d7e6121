# ruff: noqa: PLC0415 - each kind imports what its own interpreter has
"""HunyuanOCR in a process of its own: PyTorch on the checkpoint, or parts that were compiled, without torch.

python -m gpu_bench.ocr_worker KIND CHECKPOINT PARTS DEVICE

KIND is torch-fp32, torch-bf16, torch-compile-bf16, or folders of PARTS with + between them: a vision part, then a
decoder, each whole or in blocks. Times are from host to host: patches, or pages, as arrays before, rows or tokens as
arrays behind.

What a process takes of the device is what the device's free bytes lose while it loads and while it answers. One process
works at a time, so what others take is never among it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_bench import ocr_model
from gpu_bench.ocr_asked import Asked, Reader
from gpu_bench.wire import Handler, serve

Floats = NDArray[np.float32]
SEQUENCES = 32


class Parts:
    """Engines of this package: the sessions that a server steps through."""

    def __init__(self, parts: Path, names: Sequence[str], free: Callable[[], int]) -> None:
        from alula.core.decoding import IMAGE, IMAGE_AT, PLACES, Room, Work
        from alula.engines import backend
        from alula.engines.dense import DECODER, Dense, Loaded
        from gpu_bench import record
        from gpu_bench.ocr_blocks import Chain

        self._words, self._work = (IMAGE, IMAGE_AT, PLACES), Work
        opened = []
        for name in names:
            engine = record.read(parts / name / record.NAME)
            opened.append((name, engine.plan.profile, backend(engine.backend).open(engine)))
            print(f"{name} is loaded: {free()} bytes are free", file=sys.stderr, flush=True)
        self._vision = Chain([session for name, _, session in opened if name.startswith("vision")])
        decoder = [(profile, session) for name, profile, session in opened if not name.startswith("vision")]
        room = Room(sequences=SEQUENCES, blocks=SEQUENCES * 160, block_tokens=16)
        chain = Loaded(session=Chain([session for _, session in decoder]), profile=decoder[0][0])
        self._decoding = Dense({DECODER: chain}, room)
        self._open = 0

    def see(self, patches: Floats) -> Floats:
        """By the vision engine."""
        return np.asarray(self._vision.run({"patches": patches})["embeddings"])

    def start(self, asked: Sequence[Any], rows: Sequence[Floats], room: int) -> Floats:
        """As many at once as the engine takes prompts; the cache grows."""
        image, at, places = self._words
        for number, (each, row) in enumerate(zip(asked, rows, strict=True)):
            given = {image: row, at: each.given[at], places: each.given[places]}
            self._decoding.start(number, given)
            self._open = number + 1
        return self._decoding.step(
            [
                self._work(sequence=number, tokens=tuple(each.prompt), answers=True)
                for number, each in enumerate(asked)
            ]
        )

    def step(self, tokens: Sequence[int]) -> Floats:
        """One token of everybody."""
        return self._decoding.step(
            [self._work(sequence=at, tokens=(each,), answers=True) for at, each in enumerate(tokens)]
        )

    def end(self) -> None:
        """Forget everybody."""
        for number in range(self._open):
            self._decoding.release(number)
        self._open = 0


def opener(
    kind: str, folder: Path, parts: Path, device: str
) -> tuple[Callable[[], int], Callable[[], Reader]]:
    """The free bytes of a device that has this process's context, and what loads a contender by its name."""
    if "+" in kind:
        from alula.engines.cuda import Cuda
        from gpu_bench.engine_side import Host

        place = Cuda() if device == "cuda" else Host()
        place.start()

        def free() -> int:
            return place.free_bytes()[0]

        return free, lambda: Parts(parts, kind.split("+"), free)
    from gpu_bench import ocr_torch

    half, compiled = kind.endswith("bf16"), "compile" in kind
    free = ocr_torch.free_bytes_of(device)
    return free, lambda: ocr_torch.Torch(folder, device, half=half, compiled=compiled)


def handlers(kind: str, folder: Path, parts: Path, device: str) -> dict[str, Handler]:
    """Load, then answer; every answer says what is taken of the device by then, above a bare context."""
    free, load = opener(kind, folder, parts, device)
    before, begun = free(), perf_counter()
    asked = Asked(load(), ocr_model.prompts_of(folder))
    loaded = {"load_s": perf_counter() - begun}
    taken = [before - free()]
    answering: Mapping[str, Handler] = {
        "loaded": lambda message: loaded,
        "vision": asked.vision,
        "write": asked.write,
        "read": asked.read,
        "stream": asked.stream,
        "follow": asked.follow,
    }
    return {name: counted(answer, free, taken) for name, answer in answering.items()}


def counted(answer: Handler, free: Callable[[], int], taken: list[int]) -> Handler:
    """The same, saying what is taken by then.

    A GPU that is lost does not say what is free, and the error to tell is the one that came first.
    """

    def asked_for(message: Mapping[str, Any]) -> Mapping[str, Any]:
        before = free()
        try:
            found = answer(message)
        except Exception:
            with suppress(Exception):
                taken[0] += before - free()
            raise
        taken[0] += before - free()
        return {**found, "taken": taken[0]}

    return asked_for


def main(args: Sequence[str]) -> int:
    """Serve one contender."""
    kind, folder, parts, device = args
    return serve(lambda: handlers(kind, Path(folder), Path(parts), device))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
