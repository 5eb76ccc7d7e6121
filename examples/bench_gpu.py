r"""PyTorch and TensorRT on a GPU, in one run: latency, throughput, loading, memory, errors. docs/gpu.md says how.

    python examples/bench_gpu.py all                                     prepare, build, measure
    python examples/bench_gpu.py build --models bert,resnet50            what takes long, before the measuring
    python examples/bench_gpu.py measure --models bert --out results
    python examples/bench_gpu.py all --dry-run                           tiny models, no GPU: shows that it works

PyTorch and TensorRT may need different interpreters; each contender is a process of its own:

    --python-torch python3 --python-tensorrt /opt/py310/bin/python3.10
    --python-tensorrt 'bash -c "source env.sh && exec python3.10 \"$@\"" --'
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_bench import limits, record, report
from gpu_bench.cases import CONTENDERS, Case
from gpu_bench.job import Job
from gpu_bench.measuring import Keep, blank, ends_of, inputs_of, measure
from gpu_bench.options import MADE, Bench, parsed
from gpu_bench.results import Result
from gpu_bench.wire import Worker, last_lines

import alula
from alula import families
from alula.core.errors import AlulaError, InputError
from alula.core.machine import machine


def main(args: Sequence[str] | None = None) -> int:
    """Do the phases asked for; 0 if all that was promised of what was measured holds."""
    try:
        bench = parsed(sys.argv[1:] if args is None else args, __doc__)
        bench.work.mkdir(parents=True, exist_ok=True)
        if bench.phase in {"prepare", "build", "all"}:
            prepare(bench)
        if bench.phase in {"build", "all"}:
            build(bench)
        if bench.phase in {"measure", "all"}:
            return measured(bench, list(sys.argv if args is None else ["bench_gpu.py", *args]))
    except AlulaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def note(text: str) -> None:
    """Progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def prepare(bench: Bench) -> None:
    """Write the checkpoints that are missing."""
    root = bench.models
    names = [
        name
        for name in dict.fromkeys(case.folder for case in bench.cases)
        if name in MADE and name not in bench.given and not (root / name).is_dir()
    ]
    if not names:
        return
    note(f"prepare: write {', '.join(names)}")
    named = [f"{name}:tiny" if bench.dry else name for name in names]
    command = [*bench.python["torch"], "-m", "gpu_bench.prepare", str(root), *named]
    if failed := ran(command, bench, bench.log("prepare"), bench.build_limit_s):
        raise InputError(f"the checkpoints could not be written: {failed}")


def build(bench: Bench) -> None:
    """Everything that takes long, beside each other: engines, and what torch.compile keeps for later."""
    work = [
        (case, folder, name)
        for case in bench.cases
        if (folder := bench.folder(case)) is not None and folder.is_dir()
        for name in bench.names(case)
    ]
    compiled = [each for each in work if CONTENDERS[each[2]].form in {"compiled", "captured"}]
    engines = [each for each in work if CONTENDERS[each[2]].side == "engine"]
    with ThreadPoolExecutor(bench.jobs) as building, ThreadPoolExecutor(bench.jobs) as compiling:
        done = [building.submit(build_one, bench, *each) for each in engines]
        done += [compiling.submit(compile_one, bench, *each) for each in compiled]
        for each in done:
            each.result()


def build_one(bench: Bench, case: Case, folder: Path, name: str) -> None:
    """Make one engine, unless it is there; a failure is told, and kept for whoever would open it."""
    to = bench.engine(case, name)
    job = Job(
        case=case.name,
        dry=bench.dry,
        folder=str(folder),
        precision=CONTENDERS[name].precision,
        target=bench.target,
        tune=bench.tune,
        level=bench.level,
        limit_s=bench.build_limit_s,
        to=str(to),
    )
    if record.made_as(to / record.NAME, job.asked):
        note(f"build: {case.name} {name} is there")
        return
    begun = time.perf_counter()
    note(f"build: {case.name} {name} begins")
    file = bench.work / "jobs" / f"{case.name}.{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(job)), "utf-8")
    command = [*bench.python["tensorrt"], "-m", "gpu_bench.building", str(file)]
    # Reading and calibrating come before compiling, whose own limit this is.
    failed = ran(command, bench, bench.log("build", case.name, name), 2 * bench.build_limit_s)
    if failed:
        shutil.rmtree(to, ignore_errors=True)
    note(f"build: {case.name} {name} {failed or 'done'} after {time.perf_counter() - begun:.0f} s")


def compile_one(bench: Bench, case: Case, folder: Path, name: str) -> None:
    """Run every shape once, so that the compilers' caches hold what measuring needs."""
    begun, patience = time.perf_counter(), bench.build_limit_s
    mark = bench.work / "compiled" / f"{case.name}.{name}"
    if mark.is_file():
        note(f"compile: {case.name} {name} is there")
        return
    note(f"compile: {case.name} {name} begins")
    log = bench.log("compile", case.name, name)
    worker = Worker(bench.torch(case, folder, name), bench.env(), log)
    scratch, told = bench.work / "warming" / f"{case.name}.{name}", "done"
    # One contender's fault is its own: whatever it is, the others go on.
    try:
        spec = families.describe(families.open_checkpoint(str(folder)), asked=case.opened)
        inputs = inputs_of(replace(case, sets=1), spec, folder, scratch)
        worker.ask(patience, do="open", **ends_of(case, inputs))
        for path in inputs.timed.values():
            worker.ask(patience, do="warm", feeds=str(path), sets=1)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    except Exception as error:
        told = f"failed: {error}"
    finally:
        worker.end()
        shutil.rmtree(scratch, ignore_errors=True)
    note(f"compile: {case.name} {name} {told} after {time.perf_counter() - begun:.0f} s")


def ran(command: Sequence[str], bench: Bench, log: Path, limit_s: float) -> str:
    """Run a process to its end; why it failed, or nothing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as printed:
        try:
            done = subprocess.run(
                command, env=bench.env(), stdout=printed, stderr=printed, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"failed: took longer than {limit_s:g} s"
    return f"failed: {last_lines(log)}" if done.returncode else ""


def measured(bench: Bench, command: list[str]) -> int:
    """Measure case by case; files are written after each shape, so that what is done stays."""
    for line in limits.printed():
        print(f"limit  {line}")
    header = facts(bench, command)
    bench.out.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []

    def keep(result: Result) -> None:
        written(bench.out / "results.json", report.document(header, [*results, result]))
        written(bench.out / "results.md", report.page(header, [*results, result]))

    for case in bench.cases:
        begun = time.perf_counter()
        result = one(bench, case, keep)
        keep(result)
        results.append(result)
        print(f"\n{case.name}: {case.what} ({time.perf_counter() - begun:.0f} s)\n")
        print("\n".join(report.section(results[-1])), flush=True)
    failed = [verdict for result in results for verdict in limits.verdicts(result) if not verdict.passed]
    print(f"\n{len(failed)} limits do not hold" if failed else "\nall limits hold")
    print(f"written: {bench.out / 'results.json'}, {bench.out / 'results.md'}")
    return 1 if failed else 0


def one(bench: Bench, case: Case, keep: Keep) -> Result:
    """Measure one case; one that cannot be is told, and the others go on."""
    folder = bench.folder(case)
    if folder is None or not folder.is_dir():
        where = f"--{case.folder.replace('_', '-')} FOLDER" if folder is None else str(folder)
        return absent(case, f"no checkpoint: {where}")
    try:
        return taken(bench, case, folder, keep)
    except AlulaError as error:
        return absent(case, str(error))


def absent(case: Case, reason: str) -> Result:
    """The result of a case that nobody could take part in."""
    result = blank(case)
    result.failed["the case"] = reason
    return result


def taken(bench: Bench, case: Case, folder: Path, keep: Keep) -> Result:
    """Measure everybody whose engine is there."""
    scratch = bench.work / "inputs" / case.name
    shutil.rmtree(scratch, ignore_errors=True)
    spec = families.describe(families.open_checkpoint(str(folder)), asked=case.opened)
    inputs = inputs_of(case, spec, folder, scratch)
    names = bench.names(case)
    missing = {
        name: unbuilt(bench.log("build", case.name, name))
        for name in names
        if CONTENDERS[name].side == "engine" and not (bench.engine(case, name) / record.NAME).is_file()
    }

    def start(name: str) -> Worker:
        contender = name.split(" ", maxsplit=1)[0]
        return Worker(bench.command(case, folder, contender), bench.env(), bench.log("run", case.name, name))

    result = measure(
        case,
        tuple(name for name in names if name not in missing),
        inputs,
        start=start,
        folder=scratch,
        settings=bench.settings,
        note=note,
        keep=keep,
    )
    result.failed.update(missing)
    made = case.folder in MADE and case.folder not in bench.given
    result.facts["weights"] = "random" if made else folder.name
    result.built = {
        name: record.built(bench.engine(case, name) / record.NAME)
        for name in names
        if CONTENDERS[name].side == "engine" and name not in missing
    }
    shutil.rmtree(scratch, ignore_errors=True)
    return result


def unbuilt(log: Path) -> str:
    """Why there is no engine."""
    return f"not built: {last_lines(log)}" if log.is_file() else "not built"


def facts(bench: Bench, command: Sequence[str]) -> dict[str, Any]:
    """What a figure is reported with."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "command": shlex.join(command),
        "gpu": "none: a dry run on a CPU" if bench.dry else gpu(),
        "machine": machine(),
        "driver of this program": f"alula {alula.__version__}, Python {platform.python_version()}",
        "settings": asdict(bench.settings),
        "engines": f"{bench.target}, tuned by {bench.tune}, level {bench.level}, {bench.jobs} built at once",
    }


def gpu() -> str:
    """Name, driver, clocks and limits of the GPU, as its driver says."""
    asked = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return said.stdout.strip().splitlines()[0]


def written(path: Path, text: str) -> None:
    """Replace a file at once."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, "utf-8")
    aside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
