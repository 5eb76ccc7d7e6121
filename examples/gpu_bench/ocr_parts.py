"""One part of HunyuanOCR compiled as `alula build` does it, in a process of its own, without torch.

python -m gpu_bench.ocr_parts graph|engine CHECKPOINT TO NAME '{"target": "tensorrt", "opset": 17, "limit_s": 590}'

NAME is of PLANS. Parts are compiled one by one so that a build is never longer than a command may take on a machine
that is rented, and so that what is built already stays; a precision is judged by the benchmark's own errors, beside its
speed. Graphs lie in TO/graphs, one for all parts that have the same, and may be written before the compiler is there;
an engine lies in TO/NAME.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

from alula import families, graphs
from alula.core.engine import Plan
from alula.core.graph import Graph
from alula.core.model import ModelSpec
from alula.core.profile import GRID, Profile, Range
from alula.core.words import WRITTEN_OPSET
from alula.engines import GPU, backend, traits
from alula.graphs.passes.attention import MOST_SCORES
from alula.planning import Wanted, plan_of
from gpu_bench import record
from gpu_bench.ocr_blocks import PATCHES, cut, cut_vision
from gpu_bench.ocr_cases import BLOCKS, blocks_of
from gpu_bench.ocr_model import spec_of
from gpu_bench.results import Built

Sizes = Mapping[str, Range]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How to compile; `opset` is what to write for a compiler that is not there, or an older dialect to look at.

    `by` is another engine that takes the same graphs, where the one they are written for is not there.
    """

    target: str
    by: str = ""
    precision: str = ""
    limit_s: float | None = None
    level: int | None = None
    opset: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Parted:
    """A part of the model, its precision, and what `alula build --profile` would say of it, a mapping a profile.

    `block` is which of how many blocks it is; None for all of them.
    """

    part: str
    profiles: tuple[Sizes, ...]
    precision: str = "fp16"
    block: tuple[int, int] | None = None


def _square(opt: int, most: int) -> Sizes:
    return dict.fromkeys(GRID, Range(2, opt, most))


def _blocks(name: str, profiles: tuple[Sizes, ...], precision: str = "fp16") -> dict[str, Parted]:
    return {
        each: Parted(part="decoder", profiles=profiles, precision=precision, block=(at, BLOCKS))
        for at, each in enumerate(blocks_of(name))
    }


# A page of 640 x 640 is 422 tokens; its prompt and 256 of an answer lie in a cache of 1,024 places.
STEP: Sizes = {"batch": Range(1, 8, 32), "length": Range(1, 1, 1), "total": Range(1, 1024, 1024)}
PROMPT: Sizes = {"batch": Range(1, 1, 1), "length": Range(1, 256, 256), "total": Range(1, 512, 1024)}
# An image of 2816 x 1472 is 4,096 tokens, one of 1280 x 1280 is 1,642.
LONG: Sizes = {"batch": Range(1, 4, 4), "length": Range(1, 1, 256), "total": Range(1, 2048, 4608)}
EXACT: Sizes = {"batch": Range(1, 1, 5), "length": Range(1, 1, 512), "total": Range(1, 512, 1024)}
# For one page at a time, in as little memory as that takes: a cache of one width, and prompts in small pieces.
ALONE: Sizes = {"batch": Range(1, 1, 1), "length": Range(1, 1, 64), "total": Range(768, 768, 768)}
# As many patches as the most pixels have; how they lie matters before the layers and behind them alone, where the
# largest sizes have to go together.
VAST_LAYERS: Sizes = {PATCHES: Range(4, 128 * 128, 128 * 128)}
VAST: Sizes = {
    "down": Range(2, 128, 128),
    "across": Range(2, 128, 176),
    PATCHES: Range(4, 128 * 128, 128 * 176),
}
PLANS: Mapping[str, Parted] = {
    **_blocks("decoder", (STEP, PROMPT)),
    "vision-page": Parted(part="vision", profiles=(_square(40, 40),)),
    **{
        name: Parted(
            part="vision",
            profiles=(VAST_LAYERS if 0 < at <= BLOCKS else VAST,),
            block=(at, BLOCKS + 2),
        )
        for at, name in enumerate(blocks_of("vision-vast", BLOCKS + 2))
    },
    "vision-large": Parted(part="vision", profiles=(_square(80, 80),)),
    **_blocks("alone", (ALONE,)),
    **_blocks("long", (LONG,)),
    **_blocks("exact", (EXACT,), "fp32"),
    "vision-exact": Parted(part="vision", profiles=(_square(40, 98),), precision="fp32"),
    "decoder": Parted(part="decoder", profiles=(STEP, PROMPT)),
    "alone": Parted(part="decoder", profiles=(ALONE,)),
}
"""In the order in which they are worth building; decoders in one engine are for whoever has the time.

A profile reserves memory for its largest size, also while a smaller one runs, so that pages of 640 x 640 have an
engine of their own, and whoever reads one at a time has another decoder. Up to 80 x 80 patches scores fit in one tensor
of a GiB and a half; of 128 x 128 patches four heads are taken at once.
"""


def plan(spec: ModelSpec, name: str, asked: Asked) -> Plan:
    """What a part is compiled for; CPUs are as fast at any size."""
    of = PLANS[name]
    vision_block = of.part == "vision" and of.block is not None
    profiles = () if vision_block or asked.target not in GPU else of.profiles
    wanted = Wanted(
        profiles=profiles, level=asked.level, time_limit_s=asked.limit_s if asked.target in GPU else None
    )
    chosen = plan_of(spec, {}, wanted, engine=asked.target).of(spec.part(of.part))
    # No model has an axis of patches.
    return replace(chosen, profile=Profile(of.profiles[0])) if vision_block else chosen


def graph_key(name: str, chosen: Plan, asked: Asked) -> str:
    """What a part's graph is called: the same for all parts that have the same."""
    of, longest = PLANS[name], _longest(chosen)
    words = [of.part, *(map(str, of.block or ())), asked.precision or of.precision]
    # Scores of so many heads as the published model has, as `passes_for` cuts them.
    return "-".join([*words, f"to-{longest}"] if 16 * longest**2 > MOST_SCORES else words)


def _longest(chosen: Plan) -> int:
    """How many patches attend to each other at most."""
    return max(chosen.profile.largest(GRID), chosen.profile.largest((PATCHES,)))


def graph_of(folder: Path, to: Path, name: str, asked: Asked) -> Graph:
    """The graph of a part, written where it is not there: complete, or not at all."""
    checkpoint = families.open_checkpoint(str(folder))
    spec, part = spec_of(checkpoint), PLANS[name]
    chosen, precision = plan(spec, name, asked), asked.precision or part.precision
    there = to / "graphs" / graph_key(name, chosen, asked)
    if (there / record.GRAPH).is_file():
        return record.read_graph(there)
    opset = asked.opset or traits(asked.target).opset
    model = families.write(checkpoint, spec, part.part, max(opset or WRITTEN_OPSET, WRITTEN_OPSET))
    passes = graphs.passes_for(asked.target, precision, opset, longest=_longest(chosen))
    model = graphs.rewrite(model, passes)
    if part.block is not None:
        model = (cut_vision if part.part == "vision" else cut)(model, *part.block)
    aside = there.with_name(f".{there.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    record.write_graph(aside, graphs.save(model, aside / f"{part.part}.onnx", precision))
    try:
        aside.rename(there)
    except OSError:
        # Another part's process was first.
        shutil.rmtree(aside)
    return record.read_graph(there)


def compiled(folder: Path, to: Path, name: str, asked: Asked) -> Built:
    """Compile a part and record it last: where there is no record, nothing was finished."""
    begun = perf_counter()
    graph = graph_of(folder, to, name, asked)
    written = perf_counter()
    chosen = plan(spec_of(families.open_checkpoint(str(folder))), name, asked)
    shutil.rmtree(to / name, ignore_errors=True)
    engine = backend(asked.by or asked.target).compile(graph, chosen, to / name / "engine", note=_said)
    files = sum(file.stat().st_size for file in engine.path.rglob("*"))
    seconds = {"graph": written - begun, "compile": perf_counter() - written}
    built = Built(seconds=seconds, engine_bytes=files, nodes=graph.nodes, kept=0, calibrated_on="")
    record.write(to / name / record.NAME, engine, built, asdict(asked))
    return built


def _said(note: str) -> None:
    print(note, flush=True)


def main(args: Sequence[str]) -> int:
    """Write one graph, or compile one part."""
    what, folder, to, name = args[0], Path(args[1]), Path(args[2]), args[3]
    make = {"graph": graph_of, "engine": compiled}[what]
    print(make(folder, to, name, Asked(**json.loads(args[4]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
