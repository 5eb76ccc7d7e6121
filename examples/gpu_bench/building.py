"""The process that makes one engine of a checkpoint, as `alula build` does, without judging it.

python -m gpu_bench.building JOB.json
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import sentences

from alula import families, graphs
from alula.bundles import Draft
from alula.calibrate import Calibration, beyond_fp16, calibrate
from alula.core.engine import Plan
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.progress import Note
from alula.core.tensor import Feeds
from alula.data import read
from alula.engines import backend, traits
from alula.magnitudes import Fitted
from alula.questions import questions_of
from alula.rungs import NO_LAYERS, Candidate, Workshop
from gpu_bench import record
from gpu_bench.cases import Case, plan_of
from gpu_bench.drawn import draw
from gpu_bench.job import Job
from gpu_bench.results import Built

PART = "encoder"
SEED = 1000
"""Calibration sees other inputs than those that are timed and compared."""
SENTENCES = 160


class Watch:
    """How long each phase took; what it says goes to the log."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, what: str) -> Iterator[Note]:
        """Count what the block takes."""
        begun = perf_counter()
        yield lambda text: print(f"{what}: {text}", file=sys.stderr, flush=True)
        self.seconds[what] = round(perf_counter() - begun, 2)
        print(f"{what}: {self.seconds[what]} s", file=sys.stderr, flush=True)


def build(job: Job) -> Built:
    """Make the engine and its record."""
    case, to, watch = job.about, Path(job.to), Watch()
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    plan = plan_of(case, job.tune, level=job.level, limit_s=job.limit_s)
    with watch.phase("read the checkpoint"):
        checkpoint = families.open_checkpoint(job.folder)
        spec = families.describe(checkpoint, asked=case.opened)
    if spec.part(PART).axes != tuple(case.axes):
        raise InputError(f"{job.folder} has axes {spec.part('encoder').axes}, expected {tuple(case.axes)}")
    feeds, calibrated_on, calibration = seen(case, spec, checkpoint.root), "", None
    if job.precision == "int8":
        with watch.phase("calibrate"):
            calibration, calibrated_on = calibrated(case, checkpoint, spec, plan, feeds, to)
    beyond = NO_LAYERS
    if graphs.halves(job.target, job.precision):
        with watch.phase("measure what leaves the range of fp16"):
            policy = graphs.half_policy(job.target, traits(job.target).opset)
            beyond = beyond_fp16(checkpoint, spec, feeds[:2], policy)
    workshop = Workshop(
        checkpoint=checkpoint,
        spec=spec,
        backend=backend(job.target),
        plan=plan,
        opset=traits(job.target).opset,
        draft=Draft(scratch=to, to=to),
        evidence=(),
        calibration=calibration,
        fitted=Fitted(beyond=beyond),
    )
    made = workshop.compiled(job.precision, watch)
    built = Built(
        seconds=watch.seconds,
        engine_bytes=file_bytes(made),
        nodes=made.graphs[PART].nodes,
        kept=len(made.kept),
        calibrated_on=calibrated_on,
    )
    record.write(to / record.NAME, made.engines[PART], built, job.asked)
    return built


def seen(case: Case, spec: ModelSpec, folder: Path) -> list[Feeds]:
    """Calls that no contender is timed on."""
    shape, count = case.calibration
    return [draw(spec, folder, shape, SEED + at, real=case.sentences) for at in range(count)]


def calibrated(  # noqa: PLR0913, PLR0917 - a step of `build`, with what it knows
    case: Case, checkpoint: families.Checkpoint, spec: ModelSpec, plan: Plan, drawn: Sequence[Feeds], to: Path
) -> tuple[Calibration, str]:
    """Ranges, and of what: sentences where the weights are of a trained encoder, else of drawn inputs."""
    if not case.sentences:
        rows = len(drawn) * case.calibration[0][0]
        kind = "rows of random tokens" if spec.reads_text else "random pictures"
        return calibrate(checkpoint, spec, drawn), f"{rows} {kind}"
    file = to / "texts.txt"
    file.write_text("\n".join(sentences.sentences(SENTENCES, SEED)) + "\n", "utf-8")
    asked = questions_of(read(file, spec.task), spec, plan.profile, checkpoint.root)
    return calibrate(checkpoint, spec, asked), f"{SENTENCES} texts of generated sentences"


def file_bytes(made: Candidate) -> int:
    """What is loaded: the engine's own file, or the graph where a runtime has none."""
    plan = made.engines[PART].path / "engine.plan"
    return plan.stat().st_size if plan.is_file() else made.bytes


def main(args: Sequence[str]) -> int:
    """Do the job of a file."""
    build(Job(**json.loads(Path(args[0]).read_text("utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
