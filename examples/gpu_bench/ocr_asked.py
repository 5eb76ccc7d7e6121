"""What a worker of HunyuanOCR is asked, on a model that is loaded: looking, writing, reading, following an answer."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_bench import ocr_model

Floats = NDArray[np.float32]


class Reader(Protocol):
    """A model that is loaded; everything on its device is done when a method returns."""

    def see(self, patches: Floats) -> Floats:
        """One image's rows, [tokens, hidden]."""
        ...

    def start(self, asked: Sequence[Any], rows: Sequence[Floats], room: int) -> Floats:
        """Run prompts with their images' rows; the logits behind each, [prompts, vocabulary].

        `room` is how long answers may become.
        """
        ...

    def step(self, tokens: Sequence[int]) -> Floats:
        """One token of everybody."""
        ...

    def end(self) -> None:
        """Forget everybody."""
        ...


class Asked:
    """The questions, each a message in and a dict of numbers out. Prompts and pages come from sizes and seeds."""

    def __init__(self, reader: Reader, prompts: Any) -> None:
        self._reader, self._prompts = reader, prompts

    def vision(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Some calls on pages of one size; the first `unseen` are not counted."""
        patches = [self._asked([message["size"]], seed).given["patches.0"] for seed in range(2)]
        times = []
        for at in range(message["unseen"] + message["calls"]):
            begun = perf_counter()
            rows = self._reader.see(patches[at % 2])
            times.append(perf_counter() - begun)
            if not np.isfinite(rows).all():
                raise ArithmeticError("rows that are not finite")
        return {"seconds": times[message["unseen"] :]}

    def write(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Prompts of `count` pages whose rows are there, and so many tokens behind each: the decoder alone."""
        asked = [self._asked([message["size"]], 0)] * message["count"]
        rows = [self._seen(asked[0])] * len(asked)
        times, told = self._written(asked, rows, message["tokens"], [perf_counter()])
        return {**_steps(times), "told": told[:1]}

    def read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Pages from their levels to so many tokens of each, everything that is needed for it."""
        pages = [ocr_model.page(message["size"], seed) for seed in range(message["count"])]
        times = [perf_counter()]
        asked = [self._prompts.look(ocr_model.QUESTION, [page], system="") for page in pages]
        prepared = perf_counter()
        rows = [self._seen(each) for each in asked]
        seen = perf_counter()
        times, told = self._written(asked, rows, message["tokens"], times)
        return {
            **_steps(times),
            "prepared_s": prepared - times[0],
            "seen_s": seen - prepared,
            "page_s": times[-1] - times[0],
            "prompt": len(asked[0].prompt),
            "told": told[:1],
        }

    def stream(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Pages from their files to tokens, `count` at once: files opened in `jobs` processes and cut up in a thread.

        Then the same pages cut up before: what is waited for is the difference.
        """
        batches, size = message["batches"], message["count"]
        with TemporaryDirectory() as folder:
            files = ocr_model.files(Path(folder), message["size"], batches * size)
            with _ahead(files, self._prompts, message["jobs"], 2 * size) as pages:
                held = [[next(pages) for _ in range(size)]]
                begun, waited = perf_counter(), 0.0
                for at in range(batches):
                    self._answer(held[at], message["tokens"])
                    asked = perf_counter()
                    if at + 1 < batches:
                        held.append([next(pages) for _ in range(size)])
                    waited += perf_counter() - asked
                pool_s = perf_counter() - begun
        begun = perf_counter()
        for batch in held:
            self._answer(batch, message["tokens"])
        ready_s = perf_counter() - begun
        return {"pool_s": pool_s, "ready_s": ready_s, "waited_s": waited, "pages": batches * size}

    def follow(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Behind each prompt the tokens of its answer, or one's own: the logits that each is chosen by go into a file.

        Prompts are alone or, `together`, side by side. The rows of the first one's first page go into another file.
        """
        asked = [self._asked(pages, 0) for pages in message["prompts"]]
        answers: list[list[int] | None] = message.get("answers") or [None] * len(asked)
        if message.get("together"):
            logits, told = self._followed(asked, answers, message["tokens"])
        else:
            each = [
                self._followed([one], [answer], message["tokens"])
                for one, answer in zip(asked, answers, strict=True)
            ]
            logits = np.concatenate([of for of, _ in each])
            told = [row for _, rows in each for row in rows]
        np.save(message["to"], logits)
        np.save(message["rows"], self._reader.see(asked[0].given["patches.0"]))
        return {"told": told}

    def _followed(
        self, asked: Sequence[Any], answers: Sequence[list[int] | None], count: int
    ) -> tuple[Floats, list[list[int]]]:
        """Logits [prompts, tokens, vocabulary], and the tokens behind which they are."""
        try:
            logits = [self._reader.start(asked, [self._seen(each) for each in asked], count)]
            told: list[list[int]] = [[] for _ in asked]
            while True:
                at = len(logits) - 1
                for row, answer, own in zip(told, answers, best(logits[-1]), strict=True):
                    row.append(own if answer is None else answer[at])
                if len(logits) == count:
                    return np.stack(logits, axis=1), told
                logits.append(self._reader.step([row[-1] for row in told]))
        finally:
            self._reader.end()

    def _asked(self, pages: Sequence[Sequence[int]], seed: int) -> Any:
        seen = [ocr_model.page(size, seed) for size in pages]
        return self._prompts.look(ocr_model.QUESTION, seen, system="")

    def _seen(self, asked: Any) -> Floats:
        """The rows of all images of a prompt."""
        names = sorted(name for name in asked.given if name.startswith("patches."))
        return np.concatenate([self._reader.see(asked.given[name]) for name in names])

    def _answer(self, asked: Sequence[Any], count: int) -> None:
        self._written(asked, [self._seen(each) for each in asked], count, [perf_counter()])

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


@contextmanager
def _ahead(files: Sequence[str], prompts: Any, jobs: int, most: int) -> Generator[Iterator[Any]]:
    """Requests about the pages of files, made ahead of whoever takes them, `most` of them at most."""
    from alula.ocr.loading import Selection, Taking  # noqa: PLC0415 - opens files, which other questions do without
    from alula.ocr.pool import taken  # noqa: PLC0415 - likewise

    line: Queue[Any] = Queue(most)
    gone = threading.Event()

    def make() -> None:
        try:
            with closing(taken(files, Selection(), Taking(), jobs=jobs, ahead=most)) as scans:
                for scan in scans:
                    # What is lost has no pixels, which ends it all.
                    line.put(prompts.look(ocr_model.QUESTION, [scan.pixels], system=""))  # type: ignore[union-attr]
                    if gone.is_set():
                        return
        except Exception as error:
            line.put(error)

    def given() -> Iterator[Any]:
        while True:
            one = line.get()
            if isinstance(one, Exception):
                raise one
            yield one

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        yield given()
    finally:
        gone.set()
        while thread.is_alive():
            if not line.empty():
                line.get()
            thread.join(0.01)


def best(logits: Floats) -> list[int]:
    """The token with the highest logit of each."""
    if not np.isfinite(logits).all():
        raise ArithmeticError("logits that are not finite")
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def _steps(times: Sequence[float]) -> dict[str, Any]:
    seconds = [after - before for before, after in pairwise(times)]
    return {"first_s": seconds[0], "steps_s": seconds[1:]}
