"""What every precision loses and gains, on real models and real engines: the tables of docs/accuracy.md.

    make accuracy                                        all models, on ONNX Runtime and OpenVINO
    python examples/accuracy.py minilm --target openvino

Each model is calibrated and judged on one set of rows, and what was taken is judged again on others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import lines
import packaged
import photos
import sentences

from alula.build import BuildRequest, build
from alula.bundles import Bundle, Rung
from alula.core.machine import machine
from alula.core.profile import Range
from alula.core.progress import Silent
from alula.prove import VerifyRequest, verify_bundle

HERE = Path("build") / "accuracy"
TARGETS = ("onnxruntime", "openvino")
BUDGET = 0.004


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, rows to prove it on and others, and the sizes it is measured at."""

    model: Callable[[Path], Path]
    rows: Callable[[Path, int, int], Path]
    count: int
    axes: Mapping[str, Range]
    budget: float = BUDGET


def texts(to: Path, count: int, seed: int) -> Path:
    """Sentences, a line each."""
    to.mkdir(parents=True)
    return written(to / "texts.txt", sentences.sentences(count, seed))


def labelled(to: Path, count: int, seed: int) -> Path:
    """Sentences with personal data, and where it is."""
    to.mkdir(parents=True)
    return written(to / "labelled.jsonl", [json.dumps(row) for row in sentences.personal(count, seed)])


def written(file: Path, rows: list[str]) -> Path:
    """The file with these lines."""
    file.write_text("\n".join(rows) + "\n", "utf-8")
    return file


def photographs(to: Path, count: int, seed: int) -> Path:
    """Crops of photographs."""
    return photos.photographs(to, count, seed + photos.SEED)


def labelled_lines(to: Path, count: int, seed: int) -> Path:
    """Pictures of lines, with their texts."""
    lines.lines(to, count, seed)
    return to


SENTENCES = {"batch": Range(1, 8, 16), "length": Range(2, 128, 256)}
IMAGES = {"batch": Range(1, 8, 16)}
CASES: Mapping[str, Case] = {
    "minilm": Case(model=lambda to: packaged.minilm(), rows=texts, count=160, axes=SENTENCES),
    "minilm-strict": Case(
        model=lambda to: packaged.minilm(), rows=texts, count=160, axes=SENTENCES, budget=0.0015
    ),
    "rampart": Case(model=packaged.rampart, rows=labelled, count=160, axes=SENTENCES),
    "quire": Case(model=packaged.quire, rows=texts, count=160, axes=SENTENCES),
    "efficientnet": Case(model=packaged.efficientnet, rows=photographs, count=250, axes=IMAGES),
    "open_nsfw": Case(model=packaged.open_nsfw, rows=photographs, count=100, axes=IMAGES),
    "recogniser": Case(
        model=lambda to: packaged.recogniser(),
        rows=labelled_lines,
        count=300,
        axes={"batch": Range(1, 4, 8), "width": Range(32, 320, 2048)},
    ),
}


def main() -> int:
    """Build each case, print a table of its precisions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="models; all if none is named")
    parser.add_argument("--target", choices=TARGETS, help="one engine alone")
    parser.add_argument("--precision", default="auto", help="as alula build takes it")
    given = parser.parse_args()
    shutil.rmtree(HERE, ignore_errors=True)
    for name in given.names or CASES:
        for target in [given.target] if given.target else TARGETS:
            show(name, CASES[name], target, given.precision)
    print(f"\n{machine()}")
    return 0


def show(name: str, case: Case, target: str, precision: str) -> None:
    """One model on one engine: its rungs, and what was taken judged on other rows."""
    place = HERE / name / target
    place.mkdir(parents=True)
    request = BuildRequest(
        model=str(case.model(place / "model" / name)),
        to=place / "bundle",
        target=target,
        precision=precision,
        axes=case.axes,
        data=case.rows(place / "rows", case.count, 0),
        budget=case.budget,
        use_cache=False,
    )
    start = perf_counter()
    bundle = build(request, Silent()).bundle
    took = perf_counter() - start
    others = case.rows(place / "others", case.count, 1)
    again = verify_bundle(bundle, VerifyRequest(data=others), Silent())
    print(f"\n### {name} on {target}, budget {100 * case.budget:g} %, built in {took:.0f} s\n")
    print("| precision | loss | checks | p50 ms | times | MB | why |\n|---|---|---|---|---|---|---|")
    for rung in bundle.manifest.rungs:
        print(row(rung))
    print(
        f"\nTaken: {bundle.engine('encoder').graph.precision}; on {case.count} other rows: {losses(again)}",
        flush=True,
    )


def row(rung: Rung) -> str:
    """A rung as a line of the table."""
    found = ", ".join(
        loss(check.metric, check.worst, check.note) for check in rung.checks[:2] if budgeted(check.metric)
    )
    cells = (
        rung.precision + (f" ({len(rung.kept)} kept)" if rung.kept else ""),
        found,
        ("passed" if rung.passed else "FAILED") if rung.checks else "",
        "" if rung.p50_ms is None else f"{rung.p50_ms:.1f}",
        "" if rung.times is None else f"{rung.times:.2f}",
        "" if rung.bytes is None else f"{rung.bytes / 1e6:.1f}",
        ("**taken**: " if rung.taken else "") + rung.reason,
    )
    return f"| {' | '.join(cells)} |"


def losses(bundle: Bundle) -> str:
    """The first checks, which are the budget's."""
    return ", ".join(
        loss(check.metric, check.worst, check.note) + (" passed" if check.passed else " FAILED")
        for check in bundle.checks[:2]
        if budgeted(check.metric)
    )


def budgeted(metric: str) -> bool:
    """Whether a metric is one that a budget limits."""
    return metric.endswith(("_drop", "_disagreement", "_rate", "_mean", "_worst"))


def loss(metric: str, value: float, note: str) -> str:
    """A metric with its value in per cent, and the scores behind it."""
    scores = note.partition(";")[0] if "->" in note else ""
    return f"{metric} {100 * value:.2f} %" + (f" ({scores})" if scores else "")


if __name__ == "__main__":
    sys.exit(main())
