"""A server under three times the load that it can take: who is answered, when, with whose row, in what memory.

    python examples/soak.py [--minutes 10] [--times 3] [--timeout-s 2] [--totals soak.jsonl]

all-MiniLM-L6-v2 on OpenVINO in fp32. Requests come at random times whether others were answered or not (Poisson), from
a process beside the server's: texts alone and four together, under `/v1` and `/embed`. Every row is compared with the
vector of its own text, asked for alone before. Linux only. The exit code is 1 if a limit does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench_serving import Served, built, texts
from numpy.typing import NDArray

from alula.serve.memory import resident_bytes

CLIENTS = 32
"""In a closed loop, whose pace is what the server can take."""
CONNECTIONS = 768
CALM_S, WARM_S, SAMPLE_S = 8.0, 30.0, 2.0
TOGETHER = 4
ALIKE = 0.9999
"""The cosine of a row with its text's own vector; two of the texts are 0.98 at most."""
REFUSED = frozenset({429, 503, 504})
MOST_RECOVERY_S, MOST_GROWTH = 2.0, 1.1


class Line:
    """One connection, with one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """The status and the body of an answer; a connection that was closed meanwhile is opened again, once."""
        sent = json.dumps(body).encode()
        fields = f"host: soak\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}"
        head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
        fresh = self._ends is None
        try:
            return await self._exchange(head.encode() + sent)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if fresh:
                raise
            return await self._exchange(head.encode() + sent)

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        if self._ends is None:
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._ends
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(size)
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        """Let it go."""
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None


@dataclass(slots=True)
class Seen:
    """What came of all requests so far."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    rows: int = 0
    wrong: int = 0
    broken: int = 0
    unsent: int = 0


class Soak:
    """Texts with their vectors, and a server that is asked for them."""

    def __init__(self, port: int, asked: Sequence[str], timeout_s: float, seed: int) -> None:
        self.asked, self.timeout_s = asked, timeout_s
        self.vectors: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self.seen = Seen()
        self._lines = [Line(port) for _ in range(CONNECTIONS)]
        self._rng = random.Random(seed)

    async def learn(self) -> float:
        """Ask for the vector of every text alone; the seconds of most of these calm requests (99 of 100)."""
        rows, seconds = [], []
        for at in range(len(self.asked)):
            began = time.monotonic()
            rows.append(await self._vectors("/embed", [at], timeout_s=60.0))
            seconds.append(time.monotonic() - began)
        self.vectors = np.concatenate(rows)
        return float(np.quantile(seconds, 0.99))

    async def pace(self) -> float:
        """Requests a second that clients in a closed loop have answered."""
        until, done = time.monotonic() + CALM_S, 0

        async def client() -> None:
            nonlocal done
            while time.monotonic() < until:
                await self.once()
                done += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return done / CALM_S

    async def slowest_batch_s(self) -> float:
        """How long a full batch of the longest text takes alone: by so much an answer may be late."""
        longest = max(range(len(self.asked)), key=lambda at: len(self.asked[at]))
        began = time.monotonic()
        await self._vectors("/embed", [longest] * 32, timeout_s=60.0)
        return time.monotonic() - began

    async def flood(self, rate: float, seconds: float) -> None:
        """Requests at random times, so many a second on average, whatever becomes of them."""
        until, due = time.monotonic() + seconds, time.monotonic()
        under_way: set[asyncio.Task[None]] = set()
        while due < until:
            due += self._rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not self._lines:
                self.seen.unsent += 1
                continue
            task = asyncio.create_task(self.once(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)

    async def once(self, due: float | None = None) -> None:
        """One request of some kind; its row is held to its text, its time counts from when it was due."""
        path = self._rng.choice(("/v1/embeddings", "/v1/embeddings", "/embed"))
        count = TOGETHER if self._rng.random() < 0.1 else 1
        chosen = [self._rng.randrange(len(self.asked)) for _ in range(count)]
        began = time.monotonic() if due is None else due
        try:
            found = await self._vectors(path, chosen, self.timeout_s)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.seen.broken += 1
            return
        if len(found):
            self.seen.seconds.append(time.monotonic() - began)
            cosines = np.einsum("ij,ij->i", found, self.vectors[chosen])
            self.seen.rows += len(found)
            self.seen.wrong += int((~(cosines > ALIKE)).sum())

    async def _vectors(self, path: str, chosen: Sequence[int], timeout_s: float) -> NDArray[np.float32]:
        """The rows of some texts, of none where they are refused."""
        given = [self.asked[at] for at in chosen]
        body = {"input" if path.startswith("/v1") else "inputs": given, "timeout": timeout_s}
        line = self._lines.pop()
        try:
            status, answer = await line.ask(path, body)
        finally:
            self._lines.append(line)
        self.seen.statuses[status] += 1
        if status != 200:
            return np.empty((0, 0), np.float32)
        found = json.loads(answer)
        rows = [row["embedding"] for row in found["data"]] if path.startswith("/v1") else found
        return np.array(rows, np.float32)

    async def recovered_s(self, calm_s: float) -> float:
        """Seconds until a lone request is answered as fast as it was before."""
        began = time.monotonic()
        while time.monotonic() - began < 30:
            sent = time.monotonic()
            if len(await self._vectors("/embed", [0], 1.0)) and time.monotonic() - sent < calm_s:
                return time.monotonic() - began
        return float("inf")


async def memory(pids: Sequence[int], into: list[list[float]]) -> None:
    """MiB of each of the processes, until cancelled."""
    while True:
        into.append([resident_bytes(pid) / 2**20 for pid in pids])
        await asyncio.sleep(SAMPLE_S)


def thirds(mib: Sequence[Sequence[float]]) -> list[list[int]]:
    """The most that each process had in each third of the time."""
    third = len(mib) // 3
    parts = (mib[:third], mib[third : 2 * third], mib[-third:])
    return [[round(max(each)) for each in zip(*part, strict=True)] for part in parts]


async def soaked(served: Served, asked: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Ask calmly, flood, ask calmly again; the figures."""
    port = int(served.url.rpartition(":")[2])
    soak = Soak(port, asked, given.timeout_s, given.seed)
    calm_s = await soak.learn()
    capacity = await soak.pace()
    batch_s = await soak.slowest_batch_s()
    if soak.seen.wrong or set(soak.seen.statuses) != {200}:
        raise SystemExit(f"calm requests failed: {soak.seen.statuses}, {soak.seen.wrong} wrong rows")
    with urllib.request.urlopen(f"{served.url}/health") as answer:
        pids = (served.pid, int(json.load(answer)["engine"]["pid"]))
    await soak.flood(given.times * capacity, min(WARM_S, given.minutes * 20))
    calm_rows, soak.seen = soak.seen.rows, Seen()
    mib: list[list[float]] = []
    watched = asyncio.create_task(memory(pids, mib))
    await soak.flood(given.times * capacity, given.minutes * 60)
    recovery = await soak.recovered_s(calm_s)
    watched.cancel()
    seen = soak.seen
    late = max(0.0, max(seen.seconds) - given.timeout_s)
    return {
        "capacity_per_s": round(capacity, 1),
        "asked_per_s": round(sum(seen.statuses.values()) / given.minutes / 60, 1),
        "statuses": {str(status): count for status, count in sorted(seen.statuses.items())},
        "answered_per_s": round(seen.statuses[200] / given.minutes / 60, 1),
        "p50_s": round(float(np.quantile(seen.seconds, 0.5)), 3),
        "p99_s": round(float(np.quantile(seen.seconds, 0.99)), 3),
        "longest_s": round(max(seen.seconds), 3),
        "late_s": round(late, 3),
        "batch_s": round(batch_s, 3),
        "rows": seen.rows + calm_rows,
        "wrong": seen.wrong,
        "broken": seen.broken + sum(n for code, n in seen.statuses.items() if code not in {200, *REFUSED}),
        "unsent": seen.unsent,
        "front_engine_mib": thirds(mib),
        "recovery_s": round(recovery, 2),
    }


def verdicts(found: dict[str, Any], timeout_s: float) -> dict[str, bool]:
    """What was promised, and whether it holds."""
    first, *_, last = map(sum, found["front_engine_mib"])
    return {
        "every row is its own text's": found["wrong"] == 0 and found["rows"] > 0,
        "nothing but answers and refusals": found["broken"] == 0,
        "no answer later than its deadline and a batch": found["late_s"] <= found["batch_s"],
        f"p99 of what was answered within {timeout_s:g} s": found["p99_s"] <= timeout_s,
        f"memory of the last third at most {MOST_GROWTH} of the first": last <= MOST_GROWTH * first,
        f"calm again within {MOST_RECOVERY_S:g} s": found["recovery_s"] <= MOST_RECOVERY_S,
    }


def main() -> int:
    """Soak one server; 0 if all limits hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--times", type=float, default=3.0, help="of what the server can take")
    parser.add_argument("--timeout-s", type=float, default=2.0, help="the deadline of every request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--totals", type=Path, help="a file of JSON lines to add this run to")
    given = parser.parse_args()
    bundle = built("fp32")
    asked = sorted(set(texts(bundle / "tokenizer")))
    with Served(bundle) as served:
        found = asyncio.run(soaked(served, asked, given))
    for name, value in found.items():
        print(f"{name:16} {value}")
    held = verdicts(found, given.timeout_s)
    for name, holds in held.items():
        print(f"{'PASS' if holds else 'FAIL'}  {name}")
    if given.totals:
        with given.totals.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**vars(given), "totals": str(given.totals), **found}) + "\n")
        runs = [json.loads(line) for line in given.totals.read_text("utf-8").splitlines()]
        print(
            f"{sum(run['rows'] for run in runs)} rows in {len(runs)} runs, {sum(run['wrong'] for run in runs)} wrong"
        )
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
