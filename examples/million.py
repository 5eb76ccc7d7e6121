"""A million mixed requests, each held to its own answer: nobody may be given somebody else's row.

    python examples/million.py [--requests 1000000] [--clients 32] [--padded] [--totals million.jsonl]

An engine that costs almost nothing, that of `bench_front.py`, so that the server's own work is what takes the time.
Clients ask in a closed loop, at random among some thousand requests that are made before: OpenAI's embeddings as
numbers, as base64 and of token ids, `/embed`, `/tokenize` and the Open Inference Protocol's tensors, one text or
several; some hang up before they are answered, some ask for nothing and have to be refused. What each text has to give
is asked for alone before. The exit code is 1 if a row is another text's, or an answer is neither its own nor the
refusal that it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from bench_front import bodies, built
from bench_serving import Served
from demo import HERE
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MADE = 8_192
"""Requests that differ; to make one takes the client as long as the server takes to answer it."""
MOST_TOGETHER = 8
HANGING_UP, NOTHING = 0.02, 0.02
NEAR, FAR = 2e-4, 5e-3
"""What may lie between a row and its text's own, and what between two texts at least: roots of sums of squares."""
REPORT_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to ask: how its body is made of texts and their tokens, and how its rows are read."""

    path: str
    body: Callable[[Sequence[str], Sequence[Sequence[int]]], dict[str, Any]]
    rows: Callable[[Any], Any]
    tokens: bool = False


def _based(found: Any) -> Any:
    return [np.frombuffer(base64.b64decode(row["embedding"]), np.float32) for row in found["data"]]


def _tensor(found: Any) -> Any:
    (output,) = (each for each in found["outputs"] if each["name"] == "embedding")
    return np.reshape(output["data"], output["shape"])


KINDS: Mapping[str, Kind] = {
    "numbers": Kind(
        path="/v1/embeddings",
        body=lambda given, _: {"input": list(given)},
        rows=lambda found: [row["embedding"] for row in found["data"]],
    ),
    "base64": Kind(
        path="/v1/embeddings",
        body=lambda given, _: {"input": list(given), "encoding_format": "base64"},
        rows=_based,
    ),
    "of token ids": Kind(
        path="/v1/embeddings",
        body=lambda _, ids: {"input": [list(each) for each in ids]},
        rows=lambda found: [row["embedding"] for row in found["data"]],
    ),
    "/embed": Kind(path="/embed", body=lambda given, _: {"inputs": list(given)}, rows=lambda found: found),
    "tensors": Kind(
        path="/v2/models/tiny/infer",
        body=lambda given, _: {
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(given)], "data": list(given)}]
        },
        rows=_tensor,
    ),
    "/tokenize": Kind(
        path="/tokenize",
        body=lambda given, _: {"inputs": list(given)},
        rows=lambda found: [[token["id"] for token in row] for row in found],
        tokens=True,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A request as it is sent: of which kind, and the places of its texts; without a kind it has none."""

    name: str
    kind: Kind | None
    chosen: Sequence[int]
    sent: bytes


def sent(path: str, body: dict[str, Any]) -> bytes:
    """What goes over the connection."""
    written = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: crowd\r\ncontent-type: application/json\r\ncontent-length: {len(written)}"
    return head.encode() + b"\r\n\r\n" + written


class Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self._came = bytearray()
        self._ends = 0
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Line:
        """A new one."""
        _, line = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what is written to."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits is told."""
        if self._answer and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Hand the answer over once it is whole."""
        self._came += data
        if not self._ends and (head := self._came.find(b"\r\n\r\n")) >= 0:
            size = bytes(self._came[:head]).lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._ends = head + 4 + int(size)
        if self._ends and len(self._came) >= self._ends and self._answer:
            body = bytes(self._came[self._came.find(b"\r\n\r\n") + 4 : self._ends])
            self._answer.set_result((int(self._came[9:12]), body))
            self._came, self._ends = self._came[self._ends :], 0

    async def ask(self, message: bytes) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.write(message)
        return await self._answer

    def write(self, message: bytes) -> None:
        """Send what may stay unanswered."""
        assert self._transport is not None
        self._transport.write(message)

    def close(self) -> None:
        """Let it go."""
        assert self._transport is not None
        self._transport.close()


class Crowd:
    """Clients that ask at random, and what they saw."""

    def __init__(self, port: int, asked: Sequence[str], seed: int) -> None:
        self._port, self._asked, self._rng = port, asked, random.Random(seed)
        self._ids: list[list[int]] = []
        self._vectors: Floats = np.empty((0, 0), np.float32)
        self._made: list[Made] = []
        self.seen: Counter[str] = Counter()
        self.rows, self.wrong = 0, 0
        self.odd: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        """Those that were sent."""
        return sum(self.seen.values())

    async def learn(self) -> float:
        """Ask for every text's tokens and vector alone, and make the requests; the least distance of two vectors."""
        line, vectors = await Line.open(self._port), []
        for text in self._asked:
            _, body = await line.ask(sent("/tokenize", {"inputs": [text]}))
            self._ids += KINDS["/tokenize"].rows(orjson.loads(body))
            _, body = await line.ask(sent("/embed", {"inputs": [text]}))
            vectors += orjson.loads(body)
        line.close()
        self._vectors = np.array(vectors, np.float32)
        self._made = [self._make() for _ in range(MADE)]
        apart = np.linalg.norm(self._vectors[:, None] - self._vectors[None], axis=-1)
        return float(apart[~np.eye(len(apart), dtype=bool)].min())

    def _make(self) -> Made:
        draw = self._rng.random()
        if draw < NOTHING:
            return Made(name="nothing", kind=None, chosen=(), sent=sent("/embed", {"inputs": []}))
        if draw < NOTHING + HANGING_UP:
            given = self._rng.choices(self._asked, k=MOST_TOGETHER)
            return Made(name="hung up", kind=None, chosen=(), sent=sent("/embed", {"inputs": given}))
        name = self._rng.choice([*KINDS])
        count = self._rng.randint(1, MOST_TOGETHER) if self._rng.random() < 0.3 else 1
        chosen = [self._rng.randrange(len(self._asked)) for _ in range(count)]
        body = KINDS[name].body([self._asked[at] for at in chosen], [self._ids[at] for at in chosen])
        return Made(name=name, kind=KINDS[name], chosen=chosen, sent=sent(KINDS[name].path, body))

    async def client(self, count: int) -> None:
        """So many requests, one after the other."""
        line = await Line.open(self._port)
        for _ in range(count):
            made = self._rng.choice(self._made)
            self.seen[made.name] += 1
            if made.name == "hung up":
                await self._hang_up(made)
                continue
            try:
                answer = await line.ask(made.sent)
            except ConnectionError:  # closed, since nobody asked for a minute while this process was stopped
                line = await Line.open(self._port)
                answer = await line.ask(made.sent)
            self._look(made, *answer)
        line.close()

    async def _hang_up(self, made: Made) -> None:
        line = await Line.open(self._port)
        line.write(made.sent)
        await asyncio.sleep(self._rng.random() * 0.01)
        line.close()

    def _look(self, made: Made, status: int, body: bytes) -> None:
        """Hold an answer to what it should be."""
        if status != 200 or made.kind is None:
            if made.kind or status not in {400, 422}:
                self.odd[f"{made.name}: {status} {body[:80]!r}"] += 1
            return
        found = made.kind.rows(orjson.loads(body))
        self.rows += len(made.chosen)
        if len(found) != len(made.chosen):
            self.wrong += len(made.chosen)
        elif made.kind.tokens:
            self.wrong += sum(row != self._ids[at] for row, at in zip(found, made.chosen, strict=True))
        else:
            apart = np.linalg.norm(np.asarray(found, np.float32) - self._vectors[made.chosen], axis=-1)
            self.wrong += int((~(apart < NEAR)).sum())


async def asked(crowd: Crowd, given: argparse.Namespace) -> None:
    """Let everybody ask, and say every now and then how far it is."""
    apart = await crowd.learn()
    if apart < FAR:
        raise SystemExit(f"two of the texts are {apart:.3g} apart: too near to be told from each other")
    share = -(-given.requests // given.clients)
    clients = [asyncio.create_task(crowd.client(share)) for _ in range(given.clients)]
    began = time.monotonic()
    while True:
        done, left = await asyncio.wait(clients, timeout=REPORT_S, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()
        pace = crowd.requests / (time.monotonic() - began)
        print(f"{crowd.requests} requests, {crowd.rows} rows, {crowd.wrong} wrong, {pace:.0f}/s", flush=True)
        if not left:
            return


def main() -> int:
    """Ask, count, and say what came of it; 0 if everybody had what is theirs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--padded", action="store_true", help="each text has a row of its own")
    parser.add_argument("--totals", type=Path, help="a file of JSON lines to add this run to")
    given = parser.parse_args()
    bundle = built(*(("--no-packed",) if given.padded else ()))
    texts = {
        json.loads(line)["input"] for line in bodies(bundle, HERE / "short.txt").read_text().splitlines()
    }
    with Served(bundle) as served:
        crowd = Crowd(int(served.url.rpartition(":")[2]), sorted(texts), given.seed)
        asyncio.run(asked(crowd, given))
    print(f"\n{crowd.requests} requests: {dict(crowd.seen)}; load {os.getloadavg()[0]:.1f}")
    for what, count in crowd.odd.items():
        print(f"FAIL  {count} times {what}")
    good = crowd.rows > 0 and not crowd.wrong and not crowd.odd
    print(f"{'PASS' if good else 'FAIL'}  {crowd.rows} rows, {crowd.wrong} of them another text's")
    if given.totals:
        run = {"requests": crowd.requests, "rows": crowd.rows, "wrong": crowd.wrong, "odd": dict(crowd.odd)}
        with given.totals.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
        runs = [json.loads(line) for line in given.totals.read_text("utf-8").splitlines()]
        totals = {key: sum(run[key] for run in runs) for key in ("requests", "rows", "wrong")}
        print(f"{len(runs)} runs: {totals}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
