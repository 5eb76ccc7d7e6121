"""A million mixed requests, each held to its own answer: nobody may be given somebody else's row.

    python examples/million.py [--requests 1000000] [--clients 32] [--totals million.jsonl]

all-MiniLM-L6-v2 cut down to its first layer, on OpenVINO in fp32, so that the server's own work is what takes the time.
Clients ask in a closed loop and a random order: OpenAI's embeddings as numbers, as base64 and of token ids, `/embed`,
`/tokenize` and the Open Inference Protocol's tensors, one text or several; some hang up before they are answered, some
ask for nothing and have to be refused. What each text has to give is asked for alone before. The exit code is 1 if a
row is another text's, or an answer is neither its own nor the refusal that it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_serving import Served, texts
from demo import HERE, alula, packaged_minilm
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from soak import Line

Floats = NDArray[np.float32]
MODEL = "one-layer"
MOST_TOGETHER = 8
HANGING_UP, NOTHING = 0.02, 0.02
NEAR = 1e-3
"""What may lie between a row and its text's own, root of the sum of squares; two texts are 0.05 apart at least."""
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
        path=f"/v2/models/{MODEL}/infer",
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


class Crowd:
    """Clients that ask at random, and what they saw."""

    def __init__(self, port: int, asked: Sequence[str], seed: int) -> None:
        self._port, self._asked, self._rng = port, asked, random.Random(seed)
        self._ids: list[list[int]] = []
        self._vectors: Floats = np.empty((0, 0), np.float32)
        self.seen: Counter[str] = Counter()
        self.rows, self.wrong = 0, 0
        self.odd: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        """Those that were sent."""
        return sum(self.seen.values())

    async def learn(self) -> float:
        """Ask for every text's tokens and vector alone; the least distance of two vectors."""
        line, vectors = Line(self._port), []
        for text in self._asked:
            _, body = await line.ask("/tokenize", KINDS["/tokenize"].body([text], []))
            self._ids += KINDS["/tokenize"].rows(json.loads(body))
            _, body = await line.ask("/embed", KINDS["/embed"].body([text], []))
            vectors += json.loads(body)
        line.close()
        self._vectors = np.array(vectors, np.float32)
        apart = np.linalg.norm(self._vectors[:, None] - self._vectors[None], axis=-1)
        return float(apart[~np.eye(len(apart), dtype=bool)].min())

    async def client(self, count: int) -> None:
        """So many requests, one after the other."""
        line = Line(self._port)
        for _ in range(count):
            draw = self._rng.random()
            if draw < HANGING_UP:
                await self._hang_up()
            elif draw < HANGING_UP + NOTHING:
                await self._ask_for_nothing(line)
            else:
                await self._ask(line)
        line.close()

    async def _ask(self, line: Line) -> None:
        name = self._rng.choice([*KINDS])
        kind = KINDS[name]
        count = self._rng.randint(1, MOST_TOGETHER) if self._rng.random() < 0.3 else 1
        chosen = [self._rng.randrange(len(self._asked)) for _ in range(count)]
        given = kind.body([self._asked[at] for at in chosen], [self._ids[at] for at in chosen])
        self.seen[name] += 1
        status, body = await line.ask(kind.path, given)
        if status != 200:
            self.odd[f"{name}: {status} {body[:80]!r}"] += 1
            return
        found = kind.rows(json.loads(body))
        self.rows += len(chosen)
        if len(found) != len(chosen):
            self.wrong += len(chosen)
        elif kind.tokens:
            self.wrong += sum(row != self._ids[at] for row, at in zip(found, chosen, strict=True))
        else:
            apart = np.linalg.norm(np.asarray(found, np.float32) - self._vectors[chosen], axis=-1)
            self.wrong += int((~(apart < NEAR)).sum())

    async def _hang_up(self) -> None:
        self.seen["hung up"] += 1
        body = json.dumps({"inputs": self._rng.choices(self._asked, k=MOST_TOGETHER)}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST /embed HTTP/1.1\r\nhost: crowd\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        await asyncio.sleep(self._rng.random() * 0.01)
        writer.close()

    async def _ask_for_nothing(self, line: Line) -> None:
        self.seen["nothing"] += 1
        status, _ = await line.ask("/embed", {"inputs": []})
        if status not in {400, 422}:
            self.odd[f"nothing: {status}"] += 1


def one_layer(to: Path) -> Path:
    """The folder of MiniLM with the first of its six layers alone."""
    source = packaged_minilm()
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("model.safetensors"))
    config = json.loads((source / "config.json").read_text("utf-8"))
    (to / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), "utf-8")
    weights = load_file(source / "model.safetensors")
    kept = {name: value for name, value in weights.items() if ".layer." not in name or ".layer.0." in name}
    save_file(kept, to / "model.safetensors", {"format": "pt"})
    return to


def built() -> Path:
    """Its bundle, built once; whether it is verified is not asked, since rows are held to the server's own."""
    bundle = HERE / MODEL
    if not bundle.is_dir():
        HERE.mkdir(exist_ok=True)
        folder = one_layer(HERE / f"{MODEL}-checkpoint")
        words = ("--name", MODEL, "--target", "openvino", "--precision", "fp32")
        print(alula("build", str(folder), "-o", str(bundle), *words))
    return bundle


async def asked(crowd: Crowd, given: argparse.Namespace) -> None:
    """Let everybody ask, and say every now and then how far it is."""
    apart = await crowd.learn()
    if apart < 0.05:
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
    parser.add_argument("--totals", type=Path, help="a file of JSON lines to add this run to")
    given = parser.parse_args()
    bundle = built()
    with Served(bundle, "--unverified") as served:
        crowd = Crowd(
            int(served.url.rpartition(":")[2]), sorted(set(texts(bundle / "tokenizer"))), given.seed
        )
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
