r"""Models that write token by token on a GPU, PyTorch and TensorRT in turns in one run. docs/gpu.md says how.

    python examples/bench_gpu_decoders.py --model smollm2=FILE.gguf --model t5=FOLDER [--rows 1,8] [--rounds 6]

Bundles are made by `alula build --target tensorrt` in the first interpreter's place of `--python-tensorrt`; each
contender is a process of its own that loads once. In a round everybody writes the same tokens behind prompts that
nobody has seen. A row says: milliseconds of a step from host to host (median over rounds of the median of a round's
steps, fastest and slowest round), how many times PyTorch fp32's speed that is in the same round, tokens a second of
all rows, milliseconds to the first token behind --prompt tokens, bytes on the GPU above a bare context, seconds to
load, and how many of the reference's greedy tokens came out. --dry-run takes ONNX Runtime and PyTorch on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_bench.wire import Worker, WorkerError
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "PyTorch fp32"
PEERS: Mapping[str, str] = {
    REFERENCE: "eager-fp32",
    "PyTorch fp16": "eager-fp16",
    "PyTorch fp16, static cache, compiled": "compiled-fp16",
}
TEXTS = ("README.md", "CHANGELOG.md", "docs/cli.md", "docs/http.md", "docs/bundle.md")
PATIENCE_S = 400.0


@dataclass(kw_only=True)
class Row:
    """What one contender did with so many rows, round by round."""

    steps_ms: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    equal: int = 0
    asked: int = 0


@dataclass(kw_only=True)
class Contender:
    """A process and what it did, by how many rows."""

    name: str
    worker: Worker
    load_s: float
    rows: dict[int, Row] = field(default_factory=dict)
    bytes: int = 0


def main() -> int:
    """Build, then measure model by model; 0 if every bundle could be built and run."""
    options = parsed()
    results, failed = {}, False
    for name, path in options.model.items():
        try:
            results[name] = measured(name, path, options)
        except (WorkerError, subprocess.SubprocessError) as error:
            print(f"\n{name}: {error}", flush=True)
            failed = True
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "decoders.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    return int(failed)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", default=[], help="NAME=FILE.gguf or NAME=FOLDER")
    parser.add_argument("--precisions", default="fp16", help="what bundles are built in, with commas")
    parser.add_argument("--build", default="", help="more options of alula build")
    parser.add_argument("--python-torch", default=sys.executable)
    parser.add_argument("--python-tensorrt", default=sys.executable)
    parser.add_argument("--work", type=Path, default=Path("bench-decoders"))
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--peers", default=",".join(PEERS.values()), help="of these, with commas")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.model = dict(each.split("=", 1) for each in options.model)
    options.rows = [int(each) for each in options.rows.split(",")]
    return options


def measured(name: str, path: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everybody in turns on one model."""
    bundles = built(name, path, options)
    if options.build_only:
        return {}
    folder = path
    if path.endswith(".gguf"):
        folder = str(options.work / f"{name}.folder")
        if not Path(folder).is_dir():
            ran(options, ["-m", "gpu_bench.writers", "folder", path, folder], name)
    asked = [PEERS[REFERENCE]] if options.dry_run else [PEERS[REFERENCE], *options.peers.split(",")]
    peers = {label: kind for label, kind in PEERS.items() if kind in asked}
    with ExitStack() as opened:
        contenders = []
        for label, kind in peers.items():
            contenders.append(started(label, [*python(options.python_torch)], kind, folder, options))
        for label, bundle in bundles.items():
            contenders.append(
                started(label, [*python(options.python_tensorrt)], "bundle", str(bundle), options)
            )
        for each in contenders:
            opened.callback(each.worker.end)
        in_turns(contenders, tokens_of(next(iter(bundles.values()))), options)
        for each in contenders:
            each.bytes = int(each.worker.ask(PATIENCE_S, do="taken")["bytes"])
    print(f"\n{name}: {path}, {options.count} tokens behind {options.prompt}, {options.rounds} rounds\n")
    print("\n".join(table(contenders)), flush=True)
    return {
        each.name: {
            "load_s": each.load_s,
            "bytes": each.bytes,
            "rows": {count: vars(row) for count, row in each.rows.items()},
        }
        for each in contenders
    }


def built(name: str, path: str, options: argparse.Namespace) -> dict[str, Path]:
    """The bundles of a model, those there already left as they are."""
    made = {}
    for precision in options.precisions.split(","):
        bundle = (options.work / f"{name}.{precision}").resolve()
        target = "onnxruntime" if options.dry_run else "tensorrt"
        if not bundle.is_dir():
            begun = time.perf_counter()
            command = ["-m", "alula", "build", path, "-o", str(bundle)]
            command += ["--target", target, "--precision", precision, *shlex.split(options.build)]
            ran(options, command, f"{name}.{precision}")
            print(f"built {bundle.name} in {time.perf_counter() - begun:.0f} s", flush=True)
        made[f"alula {precision}"] = bundle
    return made


def ran(options: argparse.Namespace, command: Sequence[str], log: str) -> None:
    """Run in the interpreter that has TensorRT; its last lines are the error."""
    options.work.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*python(options.python_tensorrt), *command], env=env(), capture_output=True, text=True, check=False
    )
    (options.work / f"{log}.log").write_text(done.stdout + done.stderr, "utf-8")
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-8:]
        raise subprocess.SubprocessError(
            f"{shlex.join(command)} ended with {done.returncode}: " + " | ".join(lines)
        )


def python(words: str) -> list[str]:
    """An interpreter, and what has to come before it."""
    return shlex.split(words)


def env() -> dict[str, str]:
    """With this package and the benchmark's own modules."""
    paths = [str(ROOT / "src"), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def started(
    name: str, interpreter: list[str], kind: str, path: str, options: argparse.Namespace
) -> Contender:
    """A contender that is loaded."""
    device = "cpu" if options.dry_run else "cuda"
    log = options.work / f"{Path(path).name}.{kind}.log"
    worker = Worker([*interpreter, "-m", "gpu_bench.writers", kind, path, device], env(), log)
    load_s = float(worker.ask(PATIENCE_S, do="loaded")["load_s"])
    return Contender(name=name, worker=worker, load_s=load_s)


def tokens_of(bundle: Path) -> list[int]:
    """Prose that nobody tunes for: the documentation of this package."""
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer" / "tokenizer.json"))
    texts = [(ROOT / name).read_text("utf-8") for name in TEXTS]
    return [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]


def in_turns(contenders: Sequence[Contender], ids: Sequence[int], options: argparse.Namespace) -> None:
    """Rounds, the first of which is not counted: compilers compile and graphs are captured in it."""
    for count in options.rows:
        for number in range(options.rounds + 1):
            rng = np.random.default_rng(1000 * count + number)
            starts = rng.integers(0, len(ids) - options.prompt, count)
            prompts = [list(ids[at : at + options.prompt]) for at in starts]
            order = [*contenders[number % len(contenders) :], *contenders[: number % len(contenders)]]
            said = {
                each.name: each.worker.ask(PATIENCE_S, do="write", prompts=prompts, count=options.count)
                for each in order
            }
            if number:
                for each in contenders:
                    noted(each.rows.setdefault(count, Row()), said[each.name], said[REFERENCE])


def noted(row: Row, said: Mapping[str, Any], reference: Mapping[str, Any]) -> None:
    """One round."""
    step, its = (1e3 * median(each["steps_s"]) for each in (said, reference))
    row.steps_ms.append(step)
    row.times.append(its / step)
    row.first_ms.append(1e3 * said["first_s"])
    pairs = [
        (a, b)
        for ours, theirs in zip(said["told"], reference["told"], strict=True)
        for a, b in zip(ours, theirs, strict=True)
    ]
    row.equal += sum(a == b for a, b in pairs)
    row.asked += len(pairs)


def table(contenders: Sequence[Contender]) -> list[str]:
    """Markdown."""
    lines = [
        "| rows | contender | step ms | times | tokens/s | first token ms | MiB | load s | tokens equal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for count in contenders[0].rows:
        for each in contenders:
            row = each.rows[count]
            step, first = median(row.steps_ms), median(row.first_ms)
            lines.append(
                f"| {count} | {each.name} | {step:.3f} ({min(row.steps_ms):.3f}-{max(row.steps_ms):.3f}) "
                f"| {median(row.times):.2f} ({min(row.times):.2f}-{max(row.times):.2f}) "
                f"| {1e3 * count / step:.0f} | {first:.1f} ({min(row.first_ms):.1f}-{max(row.first_ms):.1f}) "
                f"| {each.bytes / 2**20:.0f} | {each.load_s:.2f} | {row.equal} of {row.asked} |"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
