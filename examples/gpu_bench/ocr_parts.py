"""One part of HunyuanOCR compiled as `alula build` does it, in a process of its own, without torch.

python -m gpu_bench.ocr_parts CHECKPOINT TO NAME '{"target": "tensorrt", "precision": "fp16", "limit_s": 590}'

NAME is of PLANS. Parts are compiled one by one so that a build is never longer than a command may take on a machine
that is rented, and so that what is built already stays; a precision is judged by the benchmark's own errors, beside its
speed. What is written lies in TO/NAME.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from alula import families, graphs
from alula.core.engine import Plan
from alula.core.model import ModelSpec
from alula.core.profile import GRID, Range
from alula.core.words import WRITTEN_OPSET
from alula.engines import GPU, backend, traits
from alula.planning import Wanted, plan_of
from gpu_bench import record
from gpu_bench.ocr_model import spec_of
from gpu_bench.results import Built

Sizes = Mapping[str, Range]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How to compile; `opset` is for a look at an older dialect on a machine without its compiler."""

    target: str
    precision: str
    limit_s: float | None = None
    level: int | None = None
    opset: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Parted:
    """A part of the model, and what `alula build --profile` would say of it; one mapping for each profile."""

    part: str
    profiles: tuple[Sizes, ...]


def _square(opt: int, most: int) -> Sizes:
    return dict.fromkeys(GRID, Range(2, opt, most))


# What pages of a batch come to: an image of 2048 x 2048 is 4,162 tokens, and 8,192 are its prompt and a long answer.
_HELD = Range(1, 1024, 8192)
_SHORT = Range(1, 512, 1024)
STEP: Sizes = {"batch": Range(1, 1, 32), "length": Range(1, 1, 1), "total": _HELD}
PROMPT: Sizes = {"batch": Range(1, 1, 1), "length": Range(1, 512, 512), "total": _HELD}
PLANS: Mapping[str, Parted] = {
    "vision-pages": Parted(part="vision", profiles=(_square(40, 40), _square(80, 80))),
    "vision-vast": Parted(
        part="vision", profiles=({"down": Range(2, 128, 128), "across": Range(2, 128, 176)},)
    ),
    "decoder": Parted(part="decoder", profiles=(STEP, PROMPT)),
    "vision-parity": Parted(part="vision", profiles=(_square(40, 40),)),
    "decoder-parity": Parted(part="decoder", profiles=({**STEP, "batch": Range(1, 1, 1), "total": _SHORT},)),
    "decoder-steps": Parted(part="decoder", profiles=(STEP,)),
}
"""Up to 80 x 80 patches scores fit in one tensor of a GiB and a half; up to 128 x 176 they are taken in eight pieces.

A profile reserves memory for its largest size once it is used: pages of 640 x 640 have one of their own, vast ones an
engine. `decoder-steps` builds in half the time and reads prompts token by token.
"""


def plan(spec: ModelSpec, name: str, asked: Asked) -> Plan:
    """What a part is compiled for; CPUs are as fast at any size."""
    profiles = PLANS[name].profiles if asked.target in GPU else ()
    wanted = Wanted(profiles=profiles, level=asked.level, time_limit_s=asked.limit_s if profiles else None)
    return plan_of(spec, {}, wanted, engine=asked.target).of(spec.part(PLANS[name].part))


def compiled(folder: Path, to: Path, name: str, asked: Asked) -> Built:
    """Write the graph, compile it, and record it last: where there is no record, nothing was finished."""
    checkpoint = families.open_checkpoint(str(folder))
    spec, part = spec_of(checkpoint), PLANS[name].part
    chosen = plan(spec, name, asked)
    opset = asked.opset or traits(asked.target).opset
    begun = perf_counter()
    model = families.write(checkpoint, spec, part, max(opset or WRITTEN_OPSET, WRITTEN_OPSET))
    longest = chosen.profile.largest(GRID)
    passes = graphs.passes_for(asked.target, asked.precision, opset, longest=longest)
    shutil.rmtree(to / name, ignore_errors=True)
    graph = graphs.save(graphs.rewrite(model, passes), to / name / "graph" / f"{name}.onnx", asked.precision)
    written = perf_counter()
    engine = backend(asked.target).compile(graph, chosen, to / name / "engine", note=_said)
    files = sum(file.stat().st_size for file in engine.path.rglob("*"))
    seconds = {"graph": written - begun, "compile": perf_counter() - written}
    built = Built(seconds=seconds, engine_bytes=files, nodes=graph.nodes, kept=0, calibrated_on="")
    record.write(to / name / record.NAME, engine, built, asdict(asked))
    return built


def _said(note: str) -> None:
    print(note, flush=True)


def main(args: Sequence[str]) -> int:
    """Compile one part."""
    folder, to, name = Path(args[0]), Path(args[1]), args[2]
    print(compiled(folder, to, name, Asked(**json.loads(args[3]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
