# ruff: noqa: PLC0415 - each kind imports what its own interpreter has
"""HunyuanOCR in a process of its own: PyTorch on the checkpoint, or parts that were compiled, without torch.

python -m gpu_bench.ocr_worker KIND CHECKPOINT PARTS DEVICE

KIND is torch-fp32, torch-bf16, torch-compile-bf16 or VISION+DECODER, two folders of PARTS. Times are from host to host:
patches, or pages, as arrays before, rows or tokens as arrays behind. Prompts and pages are made here from the sizes and
seeds of a question, so that everybody has the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_bench import ocr_model
from gpu_bench.wire import Handler, serve

Floats = NDArray[np.float32]
SEQUENCES = 32


class Reader(Protocol):
    """A model that is loaded; everything on its device is done when a method returns."""

    def see(self, patches: Floats) -> Floats:
        """One image's rows, [tokens, hidden]."""
        ...

    def start(self, asked: Sequence[Any], rows: Sequence[Floats], room: int) -> Floats:
        """Run prompts of one length with their images' rows; the logits behind each, [prompts, vocabulary]."""
        ...

    def step(self, tokens: Sequence[int]) -> Floats:
        """One token of everybody."""
        ...

    def end(self) -> None:
        """Forget everybody."""
        ...

    def taken(self) -> int:
        """Bytes of the device above a bare context."""
        ...


class Parts:
    """Engines of this package: the sessions that a server steps through."""

    def __init__(self, parts: Path, names: Sequence[str], device: str) -> None:
        from alula.core.decoding import IMAGE, IMAGE_AT, PLACES, Room, Work
        from alula.engines import backend, cache_cost, open_decoding
        from alula.engines.cuda import Cuda
        from gpu_bench import record

        self._words, self._work = (IMAGE, IMAGE_AT, PLACES), Work
        self._cuda = Cuda() if device == "cuda" else None
        if self._cuda is not None:
            self._cuda.start()
        self._free = self._left()
        vision, decoder = (record.read(parts / name / record.NAME) for name in names)
        self._vision = backend(vision.backend).open(vision)
        cost = cache_cost({"decoder": decoder})
        room = Room(sequences=SEQUENCES, blocks=SEQUENCES * 160, block_tokens=16)
        self.cache_token_bytes = cost.token_bytes
        self._decoding = open_decoding({"decoder": decoder}, room)
        self._open = 0

    def see(self, patches: Floats) -> Floats:
        """By the vision engine."""
        return np.asarray(self._vision.run({"patches": patches})["embeddings"])

    def start(self, asked: Sequence[Any], rows: Sequence[Floats], room: int) -> Floats:
        """One after another, as the engine takes prompts; the cache grows."""
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

    def taken(self) -> int:
        """By the device's own count."""
        return self._free - self._left()

    def _left(self) -> int:
        return self._cuda.free_bytes()[0] if self._cuda is not None else 0


def opened(kind: str, folder: Path, parts: Path, device: str) -> Reader:
    """A contender by its name."""
    if "+" in kind:
        return Parts(parts, kind.split("+"), device)
    from gpu_bench.ocr_torch import Torch

    return Torch(folder, device, half=kind.endswith("bf16"), compiled="compile" in kind)


def best(logits: Floats) -> list[int]:
    """The token with the highest logit of each."""
    if not np.isfinite(logits).all():
        raise ArithmeticError("logits that are not finite")
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


class Asked:
    """What a worker is asked, on a reader that is loaded."""

    def __init__(self, reader: Reader, prompts: Any) -> None:
        self._reader, self._prompts = reader, prompts

    def vision(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Some calls on pages of one size; the first `unseen` are not counted. The rows go into a file if asked."""
        patches = [self._asked(message, seed).given["patches.0"] for seed in range(2)]
        times = []
        for at in range(message["unseen"] + message["calls"]):
            begun = perf_counter()
            rows = self._reader.see(patches[at % 2])
            times.append(perf_counter() - begun)
            if not np.isfinite(rows).all():
                raise ArithmeticError("rows that are not finite")
        if "to" in message:
            np.save(message["to"], self._reader.see(patches[0]))
        return {"seconds": times[message["unseen"] :], "taken": self._reader.taken()}

    def write(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Prompts of `count` pages whose rows are there, and so many tokens behind each: the decoder alone."""
        asked = [self._asked(message, 0)] * message["count"]
        rows = [self._reader.see(asked[0].given["patches.0"])] * len(asked)
        times, told = self._written(asked, rows, message["tokens"], [perf_counter()])
        return {**_steps(times), "told": told[:1], "taken": self._reader.taken()}

    def read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Pages from their levels to so many tokens of each, everything that is needed for it."""
        pages = [ocr_model.page(message["size"], seed) for seed in range(message["count"])]
        times = [perf_counter()]
        asked = [self._prompts.look(ocr_model.QUESTION, [page], system="") for page in pages]
        prepared = perf_counter()
        rows = [self._reader.see(each.given["patches.0"]) for each in asked]
        seen = perf_counter()
        times, told = self._written(asked, rows, message["tokens"], times)
        return {
            **_steps(times),
            "prepared_s": prepared - times[0],
            "seen_s": seen - prepared,
            "page_s": times[-1] - times[0],
            "prompt": len(asked[0].prompt),
            "told": told[:1],
            "taken": self._reader.taken(),
        }

    def follow(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Behind a page the tokens of an answer, or one's own: the logits that each is chosen by go into a file."""
        asked = self._asked(message, 0)
        logits = [
            self._reader.start([asked], [self._reader.see(asked.given["patches.0"])], message["tokens"])
        ]
        told = message.get("answer") or best(logits[0])
        while len(logits) < message["tokens"]:
            logits.append(self._reader.step(told[len(logits) - 1 : len(logits)]))
            if "answer" not in message:
                told += best(logits[-1])
        self._reader.end()
        np.save(message["to"], np.concatenate(logits))
        return {"told": told}

    def _asked(self, message: Mapping[str, Any], seed: int) -> Any:
        return self._prompts.look(ocr_model.QUESTION, [ocr_model.page(message["size"], seed)], system="")

    def _written(
        self, asked: Sequence[Any], rows: Sequence[Floats], count: int, times: list[float]
    ) -> tuple[list[float], list[list[int]]]:
        try:
            tokens = best(self._reader.start(asked, rows, count))
            told = [[token] for token in tokens]
            times.append(perf_counter())
            for _ in range(count - 1):
                tokens = best(self._reader.step(tokens))
                for row, token in zip(told, tokens, strict=True):
                    row.append(token)
                times.append(perf_counter())
        finally:
            self._reader.end()
        return times, told


def _steps(times: Sequence[float]) -> dict[str, Any]:
    seconds = [after - before for before, after in pairwise(times)]
    return {"first_s": seconds[0], "steps_s": seconds[1:]}


def handlers(kind: str, folder: Path, parts: Path, device: str) -> dict[str, Handler]:
    """Load, then answer."""
    begun = perf_counter()
    reader = opened(kind, folder, parts, device)
    load_s = perf_counter() - begun
    loaded = {"load_s": load_s, "taken": reader.taken()}
    asked = Asked(reader, ocr_model.prompts_of(folder))
    answering: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
        "loaded": lambda message: loaded,
        "vision": asked.vision,
        "write": asked.write,
        "read": asked.read,
        "follow": asked.follow,
    }
    return dict(answering)


def main(args: Sequence[str]) -> int:
    """Serve one contender."""
    kind, folder, parts, device = args
    return serve(lambda: handlers(kind, Path(folder), Path(parts), device))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
