"""The checkpoint and the parts of HunyuanOCR, each made in a process with a limit; what is there is not made again."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_bench.wire import last_lines

ROOT = Path(__file__).resolve().parent.parent.parent
_GRACE_S = 60.0
"""What a process may take besides its compiler: to read the checkpoint, to write its graph."""


def prepare(options: argparse.Namespace) -> None:
    """The checkpoint, where it is not there yet."""
    to = options.work / "checkpoint"
    if not to.is_dir():
        size = "tiny" if options.dry_run else "published"
        ran(options, options.python_torch, ["gpu_bench.ocr_model", str(to), size], "prepare")


def write_graphs(options: argparse.Namespace) -> None:
    """The graphs of all parts, in the interpreter that has PyTorch: the compiler may come later."""
    _all(options, "graph", options.python_torch)


def build(options: argparse.Namespace) -> None:
    """The parts that are not there yet, some at once; one that fails is told, and left."""
    _all(options, "engine", options.python_tensorrt)


def _all(options: argparse.Namespace, what: str, python: str) -> None:
    names = options.parts.split(",")
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, said in zip(
            names, pool.map(lambda each: made(each, what, python, options), names), strict=True
        ):
            print(f"{name}: {what}: {said}", flush=True)


def made(name: str, what: str, python: str, options: argparse.Namespace) -> str:
    """A graph or an engine of one part; what came of it, in words."""
    if (options.work / "parts" / name / "record.json").is_file():
        return "is there"
    begun, failed = time.perf_counter(), options.work / f"{name}.failed"
    folders = [str(options.work / "checkpoint"), str(options.work / "parts")]
    command = ["gpu_bench.ocr_parts", what, *folders, name, json.dumps(asked_of(name, options))]
    try:
        ran(options, python, command, f"{name}.{what}", options.part_limit + _GRACE_S)
    except (subprocess.SubprocessError, OSError) as error:
        failed.write_text(str(error), "utf-8")
        return f"failed after {time.perf_counter() - begun:.0f} s: {error}"
    failed.unlink(missing_ok=True)
    return f"{time.perf_counter() - begun:.0f} s"


def asked_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """How a part is to be compiled; a CPU runs everything in fp32."""
    return {
        "target": options.target,
        "by": options.by,
        "precision": "fp32" if options.target == "onnxruntime" else "",
        "limit_s": options.part_limit,
        "level": options.level.get(name, options.level.get("")),
        "opset": options.opset,
    }


def builds(work: Path) -> dict[str, Any]:
    """What building each part took, or why there is none."""
    found: dict[str, Any] = {}
    for record in sorted((work / "parts").glob("*/record.json")):
        found[record.parent.name] = json.loads(record.read_text("utf-8"))["built"]
    for failed in sorted(work.glob("*.failed")):
        found[failed.stem] = {"failed": failed.read_text("utf-8")}
    return found


def ran(
    options: argparse.Namespace, python: str, command: Sequence[str], log: str, limit_s: float | None = None
) -> None:
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
            timeout=limit_s,
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
