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
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from demo import HERE, alula, packaged_minilm
from loads import Load, Target, loaded
from triton_peer import Setup, Triton

from alula.bundles import Bundle
from alula.codecs import Row, TextCodec, fit, row_outputs, within
from alula.core.engine import InLanes, Session
from alula.core.machine import cpu_name, usable_cores
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.exposition import Reading

FIXED = Path(__file__).with_name("fixed_window.py")
PATH = "/v1/embeddings"
TEXTS, CLIENTS = 512, 32
BATCHES = (4, 8, 16, 32)
"""Rows of a batch offline; the best of them counts."""
P99_LIMIT_MS = 250.0
"""Twelve times what the longest text takes alone on one core."""
ON_ONNXRUNTIME = "Triton on ONNX Runtime"
SWEEP = (4, 8, 16, 24, 32, 48, 64)


Sweep: TypeAlias = dict[int, dict[str, Load]]
"""What each server gives at each number of clients."""


def main() -> int:
    """Measure in turns, and print medians with their spread as Markdown and everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument(
        "--padded", action="store_true", help="each text in a row of its own; else that is measured beside"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=1, help="over the numbers of clients")
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--triton", type=Path, help="an environment with nvidia-pytriton: see triton_peer.py")
    parser.add_argument("--out", type=Path, default=HERE / "bench-serving.json")
    options = parser.parse_args()
    if not shutil.which("wrk"):
        print("no wrk here; apt-get install wrk", file=sys.stderr)
        return 2
    HERE.mkdir(exist_ok=True)
    padded = built(options.precision, packed=False)
    bundle = padded if options.padded else built(options.precision)
    offline = Offline(dict.fromkeys((bundle, padded)))
    bodies = HERE / "bodies.txt"
    bodies.write_text("".join(json.dumps({"input": text}) + "\n" for text in offline.texts))
    starts = [started_s(bundle) for _ in range(3)]
    with contextlib.ExitStack() as servers:
        ours, fixed, wide = (
            servers.enter_context(each)
            for each in (Served(bundle), Served(bundle, fixed=True), Served(bundle, "--lanes", "1"))
        )
        beside = {"32 clients, padded": servers.enter_context(Served(padded))} if bundle != padded else {}
        tritons = {
            name: servers.enter_context(each)
            for name, each in (peers(options.triton, padded) if options.triton else {}).items()
        }
        served: list[Served | Triton] = [ours, fixed, wide, *beside.values(), *tritons.values()]
        for each in served:
            each.load(bodies, CLIENTS, 2 * options.seconds)
        turns = interleaved(
            {
                "offline, one call at a time": lambda: offline.rate(lanes=False),
                "offline, lanes": lambda: offline.rate(lanes=True),
                "32 clients": lambda: ours.load(bodies, CLIENTS, options.seconds),
                "32 clients, fixed window": lambda: fixed.load(bodies, CLIENTS, options.seconds),
                "1 client": lambda: ours.load(bodies, 1, options.seconds),
                "1 client, one lane": lambda: wide.load(bodies, 1, options.seconds),
                **{
                    name: lambda each=each: each.load(bodies, CLIENTS, options.seconds)  # type: ignore[misc]
                    for name, each in (
                        *beside.items(),
                        *((f"32 clients, {name}", each) for name, each in tritons.items()),
                    )
                },
            },
            options.rounds,
        )
        swept: dict[str, Served | Triton] = {"ours": ours, "fixed window": fixed, **tritons}
        swept.pop(ON_ONNXRUNTIME, None)  # of which nothing is within the limit
        sweep = [
            {
                clients: {name: each.load(bodies, clients, options.seconds) for name, each in swept.items()}
                for clients in SWEEP
            }
            for _ in range(options.sweeps)
        ]
    report(turns, sweep, starts, offline.tokenizer_ms(), options)
    return 0


def peers(home: Path, bundle: Path) -> dict[str, Triton]:
    """Triton's Python backend on ONNX Runtime, and on the very engine of our bundle, in as many lanes as ours."""
    tokenizer = bundle / "tokenizer" / "tokenizer.json"
    graph = next((built("fp32", "onnxruntime") / "graphs").glob("*.onnx"))
    compiled = next((bundle / "engines").glob("*/engine.blob"))
    cores = usable_cores()
    setups = {
        ON_ONNXRUNTIME: Setup(
            engine="onnxruntime", file=graph, tokenizer=tokenizer, instances=1, threads=cores
        ),
        "Triton on the same engine": Setup(
            engine="openvino", file=compiled, tokenizer=tokenizer, instances=cores, threads=1
        ),
    }
    return {
        name: Triton(home, HERE / f"triton-{setup.engine}", setup, free_port())
        for name, setup in setups.items()
    }


def built(precision: str, target: str = "openvino", *, packed: bool = True) -> Path:
    """The bundle, built once."""
    name = f"serving-{precision}" if target == "openvino" else f"{target}-{precision}"
    bundle = HERE / (name if packed else f"{name}-padded")
    if not bundle.is_dir():
        print(
            alula(
                *("build", str(packaged_minilm()), "-o", str(bundle), "--name", "minilm"),
                *("--target", target, "--precision", precision, *(() if packed else ("--no-packed",))),
            )
        )
    return bundle


class Offline:
    """The same texts and the same engines without a server: sorted by length, tokenising included."""

    def __init__(self, roots: Iterable[Path]) -> None:
        bundles = [Bundle.open(root) for root in roots]
        engines = [bundle.engine("encoder") for bundle in bundles]
        self._profile = engines[0].plan.profile
        self.codec = TextCodec.open(bundles[0].tokenizer, within(bundles[0].model, self._profile))
        self.texts = texts(bundles[0].tokenizer)
        runtime: Any = backend(engines[0].backend)
        self._alone: list[Session] = [runtime.open(engine) for engine in engines]
        self._lanes: list[InLanes] = [runtime.open_lanes(engine) for engine in engines]
        for lanes in (False, True):
            self.rate(lanes=lanes)

    def rate(self, *, lanes: bool) -> float:
        """Texts per second, at the best size of a batch, of the best engine."""
        return max(
            TEXTS / timed(lambda size=size, session=session: self._once(size, session, lanes=lanes))  # type: ignore[misc]
            for session in (self._lanes if lanes else self._alone)
            for size in BATCHES
        )

    def tokenizer_ms(self) -> float:
        """Milliseconds of CPU that a text takes in the tokenizer alone."""
        began = time.process_time()
        for text in self.texts:
            self.codec.encode(text)
        return (time.process_time() - began) / TEXTS * 1e3

    def _once(self, size: int, session: Any, *, lanes: bool) -> None:
        rows = sorted((self.codec.encode(text) for text in self.texts), key=lambda row: len(row.ids))
        batches = [rows[at : at + size] for at in range(0, len(rows), size)]
        if not lanes:
            for batch in batches:
                self._answer(session, batch)
            return
        with ThreadPoolExecutor(session.lanes) as pool:
            list(pool.map(lambda batch: self._answer(session, batch), reversed(batches)))

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
        """What so many clients see, and the share of padding meanwhile."""
        before = self._tokens()
        found = loaded(Target(url=self.url, path=PATH, pids=self._pids), bodies, clients, seconds)
        tokens, cells = (now - then for now, then in zip(self._tokens(), before, strict=True))
        return replace(found, padding=1 - tokens / cells)

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
    sweep: Sequence[Sweep],
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
    servers = list(sweep[0][SWEEP[0]])
    print(f"\n| clients | {' | '.join(f'{name}: texts/s, p99 ms' for name in servers)} |")
    print("|---" * (1 + len(servers)) + "|")
    for clients in SWEEP:
        seen = {name: [one[clients][name] for one in sweep] for name in servers}
        cells = [
            f"{median(load.per_s for load in found):.0f}, {median(load.p99_ms for load in found):.0f}"
            for found in seen.values()
        ]
        print(f"| {clients} | {' | '.join(cells)} |")
    good = {name: [goodput(one, name) for one in sweep] for name in servers}
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
        **{
            f"32 clients : {name}": ratios(ours, [load.per_s for load in found])
            for name, found in loads.items()
            if name != "32 clients"
        },
        **{
            f"goodput at p99 <= {P99_LIMIT_MS:.0f} ms : {name}": [
                ours_of / other if other else math.inf
                for ours_of, other in zip(good["ours"], good[name], strict=True)
            ]
            for name in servers[1:]
        },
        "front's CPU beside the tokenizer, ms": [load.front_ms - tokenizer_ms for load in ours],
        "start to ready, s": list(starts),
        "failed requests": [float(sum(load.failed for found in loads.values() for load in found))],
    }
    print("\n| | median (least to most) |\n|---|---|")
    for name, values in rows.items():
        print(f"| {name} | {spread(values, 2)} |")
    document = {
        "machine": {"cpu": cpu_name(), "cores": cores},
        "options": {
            "precision": options.precision,
            "padded": options.padded,
            "rounds": options.rounds,
            "seconds": options.seconds,
        },
        "tokenizer_ms": tokenizer_ms,
        "turns": {
            name: [vars(one) if isinstance(one, Load) else one for one in found]
            for name, found in turns.items()
        },
        "sweeps": [
            {str(clients): {name: vars(one) for name, one in seen.items()} for clients, seen in each.items()}
            for each in sweep
        ],
        "ratios": rows,
    }
    options.out.write_text(json.dumps(document, indent=1))


def goodput(sweep: Sweep, name: str) -> float:
    """Most texts per second of one server at a number of clients whose p99 is within the limit."""
    return max(
        (seen[name].per_s for seen in sweep.values() if seen[name].p99_ms <= P99_LIMIT_MS), default=0.0
    )


def ratios(loads: Sequence[Load], to: Sequence[float]) -> list[float]:
    """Of one round to the same round."""
    return [load.per_s / other for load, other in zip(loads, to, strict=True)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, and the least and the most; nothing of what is not known."""
    if any(map(math.isnan, values)):
        return ""
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


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
