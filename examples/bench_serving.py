"""all-MiniLM-L6-v2 over HTTP beside the same engine offline, in turns: throughput, goodput, CPU, padding, start.

Linux only, and with `wrk` (`apt-get install wrk`), whose CPU is its own: 0.05 ms a request. `make bench-serving`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from demo import HERE, alula, packaged_minilm

from alula.bundles import Bundle
from alula.codecs import Row, TextCodec, fit, row_outputs, within
from alula.core.engine import Session
from alula.core.machine import cpu_name, usable_cores
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.exposition import Reading

LUA = Path(__file__).with_name("serving_load.lua")
FIXED = Path(__file__).with_name("fixed_window.py")
PATH = "/v1/embeddings"
TEXTS, CLIENTS = 512, 32
BATCHES = (4, 8, 16, 32)
"""Rows of a batch offline; the best of them counts."""
P99_LIMIT_MS = 250.0
"""Twelve times what the longest text takes alone on one core."""
SWEEP = (4, 8, 16, 24, 32, 48, 64)
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What clients in a closed loop saw, and milliseconds of CPU that each request took."""

    per_s: float
    p99_ms: float
    failed: int
    front_ms: float
    engine_ms: float
    generator_ms: float
    padding: float


def main() -> int:
    """Measure in turns, and print medians with their spread as Markdown and everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=HERE / "bench-serving.json")
    options = parser.parse_args()
    if not shutil.which("wrk"):
        print("no wrk here; apt-get install wrk", file=sys.stderr)
        return 2
    HERE.mkdir(exist_ok=True)
    bundle = built(options.precision)
    offline = Offline(bundle)
    bodies = HERE / "bodies.txt"
    bodies.write_text("".join(json.dumps({"input": text}) + "\n" for text in offline.texts))
    starts = [started_s(bundle) for _ in range(3)]
    with (
        Served(bundle) as ours,
        Served(bundle, fixed=True) as fixed,
        Served(bundle, "--lanes", "1") as wide,
    ):
        for each in (ours, fixed, wide):
            each.load(bodies, CLIENTS, 2 * options.seconds)
        turns = interleaved(
            {
                "offline, one call at a time": lambda: offline.rate(lanes=False),
                "offline, lanes": lambda: offline.rate(lanes=True),
                "32 clients": lambda: ours.load(bodies, CLIENTS, options.seconds),
                "32 clients, fixed window": lambda: fixed.load(bodies, CLIENTS, options.seconds),
                "1 client": lambda: ours.load(bodies, 1, options.seconds),
                "1 client, one lane": lambda: wide.load(bodies, 1, options.seconds),
            },
            options.rounds,
        )
        sweep = {
            clients: (
                ours.load(bodies, clients, options.seconds),
                fixed.load(bodies, clients, options.seconds),
            )
            for clients in SWEEP
        }
    report(turns, sweep, starts, offline.tokenizer_ms(), options)
    return 0


def built(precision: str) -> Path:
    """The bundle, built once."""
    bundle = HERE / f"serving-{precision}"
    if not bundle.is_dir():
        print(
            alula(
                *("build", str(packaged_minilm()), "-o", str(bundle), "--name", "minilm"),
                *("--target", "openvino", "--precision", precision),
            )
        )
    return bundle


class Offline:
    """The same texts and the same engine without a server: sorted by length, tokenising included."""

    def __init__(self, root: Path) -> None:
        bundle = Bundle.open(root)
        self._engine = bundle.engine("encoder")
        self._profile = self._engine.plan.profile
        self.codec = TextCodec.open(bundle.tokenizer, within(bundle.model, self._profile))
        self.texts = texts(bundle.tokenizer)
        runtime: Any = backend(self._engine.backend)
        self._alone: Session = runtime.open(self._engine)
        self._lanes = runtime.open_lanes(self._engine)
        for size in BATCHES:
            self._once(size, lanes=False)
            self._once(size, lanes=True)

    def rate(self, *, lanes: bool) -> float:
        """Texts per second, at the best size of a batch."""
        return max(TEXTS / timed(lambda size=size: self._once(size, lanes=lanes)) for size in BATCHES)  # type: ignore[misc]

    def tokenizer_ms(self) -> float:
        """Milliseconds of CPU that a text takes in the tokenizer alone."""
        began = time.process_time()
        for text in self.texts:
            self.codec.encode(text)
        return (time.process_time() - began) / TEXTS * 1e3

    def _once(self, size: int, *, lanes: bool) -> None:
        rows = sorted((self.codec.encode(text) for text in self.texts), key=lambda row: len(row.ids))
        batches = [rows[at : at + size] for at in range(0, len(rows), size)]
        if not lanes:
            for batch in batches:
                self._answer(self._alone, batch)
            return
        with ThreadPoolExecutor(self._lanes.lanes) as pool:
            list(pool.map(lambda batch: self._answer(self._lanes, batch), reversed(batches)))

    def _answer(self, session: Session, batch: Sequence[Row]) -> list[Feeds]:
        outputs = session.run(fit(batch, self.codec.spec, self._profile))
        return list(row_outputs(outputs, batch, self.codec.spec))


class Served:
    """A server in processes of its own, as long as the block lasts."""

    def __init__(self, bundle: Path, *more: str, fixed: bool = False) -> None:
        self._port = free_port()
        self._command = [*([str(FIXED)] if fixed else ["-m", "alula"]), "serve", str(bundle), *more]
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Served:
        self._process = subprocess.Popen(
            [sys.executable, *self._command, "--port", str(self._port)], stdout=subprocess.DEVNULL
        )
        engine = ready(self.url, self._process)["engine"]["pid"]
        self._pids = (self._process.pid, engine)
        return self

    @property
    def pid(self) -> int:
        """The front's process."""
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def load(self, bodies: Path, clients: int, seconds: int) -> Load:
        """So many clients, each with one request at a time, all on one thread of wrk."""
        before, cpu, own = self._tokens(), [cpu_s(pid) for pid in self._pids], children_s()
        ran = subprocess.run(
            [
                *("wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s"),
                *("-s", str(LUA), self.url, "--", str(bodies), PATH),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        generator = children_s() - own
        found = json.loads(ran.stdout.splitlines()[-1])
        front, engine = (
            (cpu_s(pid) - at) / found["requests"] * 1e3 for pid, at in zip(self._pids, cpu, strict=True)
        )
        tokens, cells = (now - then for now, then in zip(self._tokens(), before, strict=True))
        return Load(
            per_s=found["requests"] / found["seconds"],
            p99_ms=found["p99_ms"],
            failed=found["failed"],
            front_ms=front,
            engine_ms=engine,
            generator_ms=generator / found["requests"] * 1e3,
            padding=1 - tokens / cells,
        )

    def _tokens(self) -> tuple[float, float]:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            reading = Reading.parse(answer.read().decode(), time.monotonic())
        tokens, cells = (reading.value(f"alula_{name}_total") or 0.0 for name in ("tokens", "batch_cells"))
        return tokens, cells


def texts(tokenizer: Path, longest: int = 256) -> list[str]:
    """Texts of 8 to 256 tokens: half of them below 30, one in a hundred above 190. Words are tokens of their own.

    Those that would be longer than `longest` are as long as that.
    """
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]
    draws = random.Random(7)
    lengths = [min(longest, max(8, round(draws.lognormvariate(math.log(29), 0.85)))) for _ in range(TEXTS)]
    return [" ".join(draws.choice(words) for _ in range(length - 2)) for length in lengths]


def interleaved(what: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Each once a round, every other round backwards."""
    found: dict[str, list[Any]] = {name: [] for name in what}
    for at in range(rounds):
        for name in list(what) if at % 2 == 0 else list(what)[::-1]:
            found[name].append(what[name]())
    return found


def report(
    turns: dict[str, list[Any]],
    sweep: dict[int, tuple[Load, Load]],
    starts: Sequence[float],
    tokenizer_ms: float,
    options: argparse.Namespace,
) -> None:
    """Medians, least and most; and what becomes of the limits."""
    loads: dict[str, list[Load]] = {name: found for name, found in turns.items() if "client" in name}
    ours = loads["32 clients"]
    print(f"\n{cpu_name()}, {usable_cores()} cores; MiniLM {options.precision} on OpenVINO; ", end="")
    print(
        f"{TEXTS} texts; {options.rounds} rounds of {options.seconds} s in turns; load {os.getloadavg()[0]:.1f}\n"
    )
    print(
        "| | texts/s | p99 ms | padding | front ms | engine ms | generator ms |\n|---|---|---|---|---|---|---|"
    )
    for name, found in turns.items():
        if name not in loads:
            print(f"| {name} | {spread(found)} | | | | | |")
            continue
        cells = [
            spread([getattr(load, field) for load in found], digits)
            for field, digits in (
                ("per_s", 0),
                ("p99_ms", 0),
                ("padding", 3),
                ("front_ms", 2),
                ("engine_ms", 2),
                ("generator_ms", 3),
            )
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print("\n| clients | ours: texts/s, p99 ms | fixed window: texts/s, p99 ms |\n|---|---|---|")
    for clients, (one, other) in sweep.items():
        print(f"| {clients} | {one.per_s:.0f}, {one.p99_ms:.0f} | {other.per_s:.0f}, {other.p99_ms:.0f} |")
    good = [
        max((pair[at].per_s for pair in sweep.values() if pair[at].p99_ms <= P99_LIMIT_MS), default=0.0)
        for at in (0, 1)
    ]
    cores = usable_cores()
    busy = [cores / (cores - load.per_s * load.generator_ms / 1e3) for load in ours]
    alone, lanes = turns["offline, one call at a time"], turns["offline, lanes"]
    rows = {
        "of offline, one call at a time": ratios(ours, alone),
        "of offline in lanes": ratios(ours, lanes),
        "of offline, one call at a time, generator's CPU given back": [
            ratio * more for ratio, more in zip(ratios(ours, alone), busy, strict=True)
        ],
        "of offline in lanes, generator's CPU given back": [
            ratio * more for ratio, more in zip(ratios(ours, lanes), busy, strict=True)
        ],
        "32 clients : fixed window": ratios(ours, [load.per_s for load in loads["32 clients, fixed window"]]),
        **{
            f"32 clients : {name}": ratios(ours, [load.per_s for load in loads[name]])
            for name in ("1 client", "1 client, one lane")
        },
        f"goodput at p99 <= {P99_LIMIT_MS:.0f} ms : fixed window": [
            good[0] / good[1] if good[1] else math.inf
        ],
        "front's CPU beside the tokenizer, ms": [load.front_ms - tokenizer_ms for load in ours],
        "start to ready, s": list(starts),
        "failed requests": [float(sum(load.failed for found in loads.values() for load in found))],
    }
    print("\n| | median (least to most) |\n|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {spread(values, 2)} |")
    document = {
        "machine": {"cpu": cpu_name(), "cores": cores},
        "options": {"precision": options.precision, "rounds": options.rounds, "seconds": options.seconds},
        "tokenizer_ms": tokenizer_ms,
        "turns": {
            name: [vars(one) if isinstance(one, Load) else one for one in found]
            for name, found in turns.items()
        },
        "sweep": {str(clients): [vars(one) for one in pair] for clients, pair in sweep.items()},
        "ratios": rows,
    }
    options.out.write_text(json.dumps(document, indent=1))


def ratios(loads: Sequence[Load], to: Sequence[float]) -> list[float]:
    """Of one round to the same round."""
    return [load.per_s / other for load, other in zip(loads, to, strict=True)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, and the least and the most."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def started_s(bundle: Path) -> float:
    """Seconds from the start of a server to its being ready."""
    began = time.perf_counter()
    with Served(bundle):
        return time.perf_counter() - began


def ready(url: str, process: subprocess.Popen[bytes]) -> Any:
    """What a server says once it is ready."""
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health/ready") as answer:
            return json.load(answer)
        time.sleep(0.01)
    raise SystemExit(f"the server ended with {process.returncode}")


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def children_s() -> float:
    """Seconds of CPU that processes took which were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
