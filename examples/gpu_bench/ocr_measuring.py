"""Cases of HunyuanOCR, everybody in turns: contenders are processes, what they say is kept after each case."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gpu_bench.ocr_building import builds, env
from gpu_bench.ocr_cases import COMPILED, EXACT, PARTS, PEERS, REFERENCE, TOGETHER, Case, cases
from gpu_bench.ocr_report import markdown, verdicts
from gpu_bench.wire import Worker, WorkerError

TIE = 1e-3
LOADING_S = 120.0
FIRST_S = 150.0
"""What a contender's first turn in a case may take longer: compilers compile in it, and it is not counted."""
STARTS = 2
"""How often a contender is started whose process ends."""
PRIMED = 3
"""Tokens that suffice for everything to be compiled that an answer needs."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All cases that are not measured yet, with the contenders that can be loaded; kept after each."""
    file = options.work / "results.json"
    results: dict[str, Any] = {"command": shlex.join(sys.argv), "loaded": {}, "cases": {}}
    if file.is_file():
        results |= json.loads(file.read_text("utf-8"))
    results["built"] = builds(options.work)
    begun = time.monotonic()
    with ExitStack() as opened:
        field = Field(options=options, opened=opened, told=results["loaded"])
        for case in chosen(options, results):
            if time.monotonic() - begun > options.until:
                print(f"{case.name}: no time is left for it", flush=True)
                continue
            results["cases"][case.name] = case_of(case, field.those(case.who), options)
            keep(options, results)
            print(f"{case.name}: done at {time.monotonic() - begun:.0f} s", flush=True)
    keep(options, results)
    return results


def prime(options: argparse.Namespace) -> None:
    """Let what is compiled by PyTorch be compiled once, so that later processes find it in its cache on the disk."""
    begun = time.monotonic()
    with ExitStack() as opened:
        field = Field(options=options, opened=opened, told={})
        for case in chosen(options, {"cases": {}}):
            left = options.until - (time.monotonic() - begun)
            if COMPILED not in case.who or left <= 0:
                continue
            for who, worker in field.those([COMPILED]).items():
                try:
                    worker.ask(left, **messages(replace(case, tokens=min(PRIMED, case.tokens)), options, who))
                except WorkerError as error:
                    print(f"{case.name}: {error}", flush=True)
            print(f"{case.name}: primed at {time.monotonic() - begun:.0f} s", flush=True)


@dataclass(kw_only=True)
class Field:
    """The contenders' processes, each started when a case wants it; what loading took, or why it failed, is `told`."""

    options: argparse.Namespace
    opened: ExitStack
    told: dict[str, Any]
    workers: dict[str, Worker] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)

    def those(self, who: Iterable[str]) -> dict[str, Worker]:
        """Those of a case that were asked for and are there."""
        wanted = [each for each in who if each in asked_for(self.options)]
        for each in wanted:
            if each not in self.workers or not self.workers[each].alive:
                self._start(each)
        return {each: self.workers[each] for each in wanted if each in self.workers}

    def _start(self, who: str) -> None:
        self.workers.pop(who, None)
        if self.starts[who] >= STARTS:
            return
        self.starts[who] += 1
        options, kind = self.options, kind_of(who, self.options)
        if kind is None:
            self.told[who] = {"failed": "its parts are not built"}
            return
        python = options.python_torch if who in PEERS else options.python_tensorrt
        words = [*shlex.split(python), "-m", "gpu_bench.ocr_worker", kind, str(options.work / "checkpoint")]
        words += [str(options.work / "parts"), "cpu" if options.dry_run else "cuda"]
        log = options.work / f"{who}.{self.starts[who]}.log"
        worker = Worker(words, env(one_thread=options.dry_run), log)
        self.opened.callback(worker.end)
        try:
            self.told[who] = {**worker.ask(LOADING_S, do="loaded"), "kind": kind}
            self.workers[who] = worker
        except WorkerError as error:
            self.told[who] = {"failed": str(error)}


def chosen(options: argparse.Namespace, results: Mapping[str, Any]) -> list[Case]:
    """The cases to measure now."""
    named = [each for each in options.cases.split(",") if each]
    every = cases(tiny=options.dry_run, rounds=options.rounds)
    if options.dry_run:
        every = tuple(replace(case, rounds=min(2, case.rounds), jobs=1) for case in every)
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


def kind_of(who: str, options: argparse.Namespace) -> str | None:
    """What a worker is started as; None where the parts of one of ours are not all built."""
    if who in PEERS:
        return who
    for parts in PARTS[who]:
        if all((options.work / "parts" / part / "record.json").is_file() for part in parts):
            return "+".join(parts)
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


def messages(case: Case, options: argparse.Namespace, who: str) -> dict[str, Any]:
    """The question of a case; one about an answer is told where its logits and rows are to be kept."""
    if case.kind != "follow":
        return case.message
    return {**case.message, **{key: str(options.work / f"{who}.{key}.npy") for key in ("to", "rows")}}


def followed(
    case: Case, workers: Mapping[str, Worker], options: argparse.Namespace, failed: dict[str, str]
) -> dict[str, Any]:
    """Everybody behind the reference's own greedy answers: rows and logits beside the reference's.

    Several prompts are written alone by all, and side by side, too, where ours is fp32.
    """
    if REFERENCE not in workers:
        return {"errors": {}}
    asked: dict[str, tuple[Worker, dict[str, Any]]] = {who: (each, {}) for who, each in workers.items()}
    if len(case.sizes) > 1 and EXACT in workers:
        asked[TOGETHER] = workers[EXACT], {"together": True}
    errors: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    first = messages(case, options, REFERENCE)
    for who in [REFERENCE, *(each for each in asked if each != REFERENCE)]:
        worker, more = asked[who]
        own = messages(case, options, who)
        try:
            told = worker.ask(case.limit_s + FIRST_S, **own, **answers, **more)["told"]
        except WorkerError as error:
            failed[who] = str(error)
            continue
        answers = answers or {"answers": told}
        if who != REFERENCE:
            files = (first["rows"], first["to"], own["rows"], own["to"])
            errors[who] = apart(*(np.load(each) for each in files))
    return {"errors": errors, "answers": answers.get("answers", [])}


def apart(rows: Any, logits: Any, its_rows: Any, its_logits: Any) -> dict[str, Any]:
    """Norms of differences over norms, the largest of logits, and tokens that are others: ties, and the rest.

    Logits are [prompts, tokens, vocabulary]. A tie is less than `TIE` apart in the reference.
    """
    off = np.abs(its_logits - logits)
    taken = its_logits.argmax(-1)
    behind = logits.max(-1) - np.take_along_axis(logits, taken[..., None], -1)[..., 0]
    other = behind > 0
    tied = other & (behind < TIE)
    return {
        "rows": float(np.linalg.norm(its_rows - rows) / np.linalg.norm(rows)),
        "relative": float(np.linalg.norm(its_logits - logits) / np.linalg.norm(logits)),
        "largest": float(off.max()),
        "of_each": [float(each) for each in off.max(axis=(1, 2))],
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
