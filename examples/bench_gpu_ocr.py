r"""HunyuanOCR at its published sizes on a GPU, PyTorch and TensorRT in turns in one run. docs/gpu.md says how.

    export PYTHONPATH=src:tests/models
    B="python3 examples/bench_gpu_ocr.py --work W"
    T='bash -c "source env.sh && exec python3.10 \"$@\"" --'
    $B prepare                              # the checkpoint with random weights, 4 GB
    $B build --python-tensorrt "$T"         # its parts, each a process with a limit; what is built stays
    $B measure --python-tensorrt "$T"       # W/results.json and W/results.md, written after every case
    $B all --dry-run                        # a small model, ONNX Runtime and PyTorch on the CPU

Every phase goes on where it was left: parts and cases that are there are not made again (--again does). Each contender
is a process of its own; one that takes longer than a case's limit is ended, the case says so, and the others go on. The
exit code is 1 where a limit does not hold.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_bench.ocr_cases import (
    PARTS,
    PEERS,
    REFERENCE,
    Case,
    cases,
    markdown,
    verdicts,
)
from gpu_bench.wire import Worker, WorkerError, last_lines

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("prepare", "build", "measure", "all")
TIE = 1e-3
LOADING_S = 240.0
FIRST_S = 200.0
"""What a contender's first turn in a case may take longer: compilers compile in it, and it is not counted."""


def main() -> int:
    """0 if every limit holds."""
    options = parsed()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.phase in {"prepare", "all"}:
        prepare(options)
    if options.phase in {"build", "all"}:
        build(options)
    if options.phase in {"measure", "all"}:
        results = measure(options)
        print(markdown(results), flush=True)
        return int(not all(each.holds for each in verdicts(results)))
    return 0


def parsed(args: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("--work", type=Path, default=Path("bench-ocr"))
    parser.add_argument("--python-torch", default=sys.executable)
    parser.add_argument("--python-tensorrt", default=sys.executable)
    parser.add_argument("--parts", default="decoder,vision-pages,vision-vast,decoder-parity,vision-parity")
    parser.add_argument("--level", type=int, help="TensorRT's, of all parts")
    parser.add_argument("--part-limit", type=float, default=480.0, help="seconds that a part may build")
    parser.add_argument("--jobs", type=int, default=2, help="parts that are built at once")
    parser.add_argument("--cases", default="", help="of those that there are, by name, with commas")
    parser.add_argument("--contenders", default="", help="likewise; PyTorch fp32 always takes part")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--until", type=float, default=540.0, help="seconds after which no case is begun")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(args)
    options.target = "onnxruntime" if options.dry_run else "tensorrt"
    return options


def prepare(options: argparse.Namespace) -> None:
    """The checkpoint, where it is not there yet."""
    to = options.work / "checkpoint"
    if not to.is_dir():
        size = "tiny" if options.dry_run else "published"
        ran(options, options.python_torch, ["gpu_bench.ocr_model", str(to), size], "prepare")


def build(options: argparse.Namespace) -> None:
    """The parts that are not there yet, some at once; one that fails is told, and left."""
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, said in zip(
            options.parts.split(","),
            pool.map(lambda name: built(name, options), options.parts.split(",")),
            strict=True,
        ):
            print(f"{name}: {said}", flush=True)


def built(name: str, options: argparse.Namespace) -> str:
    """One part; what came of it, in words."""
    asked = {"target": options.target, "precision": precision_of(name, options), "level": options.level}
    record = options.work / "parts" / name / "record.json"
    if record.is_file():
        return "is there"
    begun = time.perf_counter()
    told = json.dumps({**asked, "limit_s": options.part_limit})
    command = [
        "gpu_bench.ocr_parts",
        str(options.work / "checkpoint"),
        str(options.work / "parts"),
        name,
        told,
    ]
    try:
        ran(options, options.python_tensorrt, command, name)
    except subprocess.SubprocessError as error:
        (options.work / f"{name}.failed").write_text(str(error), "utf-8")
        return f"failed after {time.perf_counter() - begun:.0f} s: {error}"
    (options.work / f"{name}.failed").unlink(missing_ok=True)
    return f"{time.perf_counter() - begun:.0f} s"


def precision_of(part: str, options: argparse.Namespace) -> str:
    """Parts for parity are fp32, and everything is in a dry run."""
    return "fp32" if options.dry_run or part.endswith("-parity") else "fp16"


def ran(options: argparse.Namespace, python: str, command: Sequence[str], log: str) -> None:
    """Run a module in one of the interpreters; its last lines are the error."""
    file = options.work / f"{log}.log"
    with file.open("wb") as out:
        words = [*shlex.split(python), "-m", *command]
        done = subprocess.run(
            words,
            env=env(one_thread=options.dry_run),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        raise subprocess.SubprocessError(f"ended with {done.returncode}: {last_lines(file)}")


def env(*, one_thread: bool = False) -> dict[str, str]:
    """With this package, the benchmark's own modules and the tests' small model.

    A small model is done sooner by `one_thread` than by many that wait for each other.
    """
    paths = [ROOT / "src", ROOT / "examples", ROOT / "tests" / "models", os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path))}
    return {**found, "OMP_NUM_THREADS": "1"} if one_thread else found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All cases that are not measured yet, with the contenders that can be loaded; kept after each."""
    file = options.work / "results.json"
    results: dict[str, Any] = {"command": shlex.join(sys.argv), "loaded": {}, "cases": {}}
    if file.is_file():
        results |= json.loads(file.read_text("utf-8"))
    results["built"] = builds(options)
    begun = time.monotonic()
    with ExitStack() as opened:
        workers: dict[str, Worker] = {}
        for case in chosen(options, results):
            if time.monotonic() - begun > options.until:
                print(f"{case.name}: no time is left for it", flush=True)
                continue
            who = [each for each in case.who if each in asked_for(options)]
            for each in who:
                load(each, workers, results, options, opened)
            results["cases"][case.name] = case_of(case, {w: workers[w] for w in who if w in workers}, options)
            keep(options, results)
            print(f"{case.name}: done at {time.monotonic() - begun:.0f} s", flush=True)
    keep(options, results)
    return results


def chosen(options: argparse.Namespace, results: Mapping[str, Any]) -> list[Case]:
    """The cases to measure now."""
    named = [each for each in options.cases.split(",") if each]
    every = cases(tiny=options.dry_run, rounds=options.rounds)
    if options.dry_run:
        every = tuple(replace(case, rounds=min(2, case.rounds)) for case in every)
    if unknown := set(named) - {case.name for case in every}:
        raise SystemExit(f"no case {sorted(unknown)}; there are {[case.name for case in every]}")
    wanted = [case for case in every if not named or case.name in named]
    return [case for case in wanted if options.again or case.name not in results["cases"]]


def asked_for(options: argparse.Namespace) -> list[str]:
    """Contenders by name, the reference always."""
    every = [*PEERS, *PARTS]
    if not options.contenders:
        # A small model's pieces are what compilers would be tried on for minutes.
        return [each for each in every if not (options.dry_run and "compile" in each)]
    return [REFERENCE, *(each for each in options.contenders.split(",") if each != REFERENCE)]


def builds(options: argparse.Namespace) -> dict[str, Any]:
    """What building each part took, or why there is none."""
    found: dict[str, Any] = {}
    for record in sorted((options.work / "parts").glob("*/record.json")):
        found[record.parent.name] = json.loads(record.read_text("utf-8"))["built"]
    for failed in sorted(options.work.glob("*.failed")):
        found[failed.stem] = {"failed": failed.read_text("utf-8")}
    return found


def load(
    who: str,
    workers: dict[str, Worker],
    results: dict[str, Any],
    options: argparse.Namespace,
    opened: ExitStack,
) -> None:
    """Start a contender that is not there; what it took, or why it could not be, is among the results."""
    if who in workers or (kind := kind_of(who, options)) is None:
        if who not in workers:
            results["loaded"][who] = {"failed": "its parts are not built"}
        return
    python = options.python_torch if who in PEERS else options.python_tensorrt
    words = [*shlex.split(python), "-m", "gpu_bench.ocr_worker", kind, str(options.work / "checkpoint")]
    words += [str(options.work / "parts"), "cpu" if options.dry_run else "cuda"]
    worker = Worker(words, env(one_thread=options.dry_run), options.work / f"{who}.log")
    opened.callback(worker.end)
    try:
        results["loaded"][who] = {**worker.ask(LOADING_S, do="loaded"), "kind": kind}
        workers[who] = worker
    except WorkerError as error:
        results["loaded"][who] = {"failed": str(error)}


def kind_of(who: str, options: argparse.Namespace) -> str | None:
    """What a worker is started as; None where the parts of one of ours are not all built."""
    if who in PEERS:
        return who
    for vision, decoder, _ in PARTS[who]:
        if all((options.work / "parts" / part / "record.json").is_file() for part in (vision, decoder)):
            return f"{vision}+{decoder}"
    return None


def case_of(case: Case, workers: Mapping[str, Worker], options: argparse.Namespace) -> dict[str, Any]:
    """One case: a turn of each that is not counted, then rounds, each begun by another one."""
    found: dict[str, Any] = {"kind": case.kind, "count": case.count, "size": case.size, "failed": {}}
    if case.kind == "follow":
        return {**found, **followed(case, workers, options, found["failed"])}
    turns: dict[str, list[Any]] = {who: [] for who in workers}
    for number in range(case.rounds + 1):
        there = [who for who in workers if who not in found["failed"]]
        at = number % max(1, len(there))
        for who in [*there[at:], *there[:at]]:
            try:
                said = workers[who].ask(case.limit_s + FIRST_S * (not number), **case.message)
            except WorkerError as error:
                found["failed"][who] = str(error)
                continue
            if number:
                turns[who].append(said)
    return {**found, "turns": {who: each for who, each in turns.items() if who not in found["failed"]}}


def followed(
    case: Case, workers: Mapping[str, Worker], options: argparse.Namespace, failed: dict[str, str]
) -> dict[str, Any]:
    """Everybody behind the reference's own greedy answer: rows and logits beside the reference's."""
    if REFERENCE not in workers:
        return {"errors": {}}
    files = {who: [str(options.work / f"{who}.{what}.npy") for what in ("rows", "logits")] for who in workers}
    errors: dict[str, Any] = {}
    answer: dict[str, Any] = {}
    for who in [REFERENCE, *(each for each in workers if each != REFERENCE)]:
        rows, logits = files[who]
        try:
            look = {"do": "vision", "size": list(case.size), "unseen": 1, "calls": 1, "to": rows}
            workers[who].ask(case.limit_s + FIRST_S, **look)
            told = workers[who].ask(case.limit_s + FIRST_S, **case.message, **answer, to=logits)["told"]
        except WorkerError as error:
            failed[who] = str(error)
            continue
        answer = answer or {"answer": told}
        if who != REFERENCE:
            errors[who] = apart(*(np.load(each) for each in (*files[REFERENCE], rows, logits)))
    return {"errors": errors, "answer": answer.get("answer", [])}


def apart(rows: Any, logits: Any, its_rows: Any, its_logits: Any) -> dict[str, float]:
    """Norms of differences over norms, the largest of logits, and tokens that are others: ties, and the rest.

    A tie is less than `TIE` apart in the reference.
    """
    off = np.abs(its_logits - logits)
    steps, taken = np.arange(len(logits)), its_logits.argmax(-1)
    behind = logits.max(-1) - logits[steps, taken]
    other = behind > 0
    tied = other & (behind < TIE)
    return {
        "rows": float(np.linalg.norm(its_rows - rows) / np.linalg.norm(rows)),
        "relative": float(np.linalg.norm(its_logits - logits) / np.linalg.norm(logits)),
        "largest": float(off.max()),
        "others": int((other & ~tied).sum()),
        "ties": int(tied.sum()),
        "farthest": float(behind.max()),
    }


def keep(options: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Both files at once or not at all."""
    shown = {**results, "verdicts": [asdict(each) for each in verdicts(results)]}
    for name, text in (("results.json", json.dumps(shown, indent=1)), ("results.md", markdown(results))):
        aside = options.work / f".{name}"
        aside.write_text(text + "\n", "utf-8")
        aside.replace(options.work / name)


if __name__ == "__main__":
    sys.exit(main())
