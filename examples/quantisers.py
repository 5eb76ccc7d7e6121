"""int8 of all-MiniLM-L6-v2 by several quantisers, judged and measured alike: a table of docs/accuracy.md.

    PYTHONPATH=tests/models python examples/quantisers.py

nvidia-modelopt[onnx] asks for other versions of onnx and onnxruntime than constraints.txt has: run this where that is
installed, beside what alula[build] needs, which leaves its graphs in build/quantisers, and again without.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import sentences
from demo import packaged_minilm
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

from alula import families, graphs
from alula.bench import Contender, Turns, measure
from alula.calibrate import calibrate
from alula.core.machine import machine
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.data import Dataset, read
from alula.graphs.save import data_path
from alula.questions import BUDGET, Promise, Questions, questions_of
from alula.running import running_file

HERE = Path("build") / "quantisers"
SINGLE = Profile({"batch": Range(1, 1, 1), "length": Range(2, 128, 256)})
SERVED = Profile({"batch": Range(1, 8, 8), "length": Range(2, 128, 256)})
SHAPES = ((1, 128), (8, 128))
TURNS = Turns(rounds=12, calls=2, least=8, seconds=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What every quantiser gets: the graph, and rows one by one, so that none sees padding."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    feeds: Sequence[Feeds]

    def graph(self) -> graphs.Model:
        """The fp32 graph, in memory."""
        return families.write(self.checkpoint, self.spec, "encoder")

    def file(self) -> Path:
        """The fp32 graph on disk."""
        return graphs.save(self.graph(), HERE / "fp32.onnx", "fp32").path

    def smoothed(self) -> Path:
        """The same with its activations smoothed by alula."""
        found = calibrate(self.checkpoint, self.spec, self.feeds, use_cache=False)
        model, _ = graphs.observe(self.graph(), found.smoothing)
        del model.graph.outputs[1:]
        model = graphs.rewrite(model, [RemoveUnusedNodesPass()])
        return graphs.save(model, HERE / "smoothed.onnx", "fp32").path


class Reader:
    """The rows as onnxruntime and modelopt ask for them."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = feeds
        self.rewind()

    def get_first(self) -> Feeds:
        """The first row."""
        return self._feeds[0]

    def get_next(self) -> Feeds | None:
        """The next row; None after the last."""
        return next(self._left, None)

    def rewind(self) -> None:
        """Begin again."""
        self._left: Iterator[Feeds] = iter(self._feeds)


Way: TypeAlias = Callable[[Given, Path], None]


def ours(given: Given, to: Path, *, smooth: bool = True) -> None:
    """What alula makes."""
    found = calibrate(given.checkpoint, given.spec, given.feeds, smooth=smooth, use_cache=False)
    model = graphs.quantize(given.graph(), found.ranges, smoothing=found.smoothing)
    graphs.save(model, to, "int8")


def static(given: Given, to: Path, *, smoothed: bool = False, **options: Any) -> None:
    """ONNX Runtime's, with ranges that are known before."""
    graph = given.smoothed() if smoothed else given.file()
    quantize_static(graph, to, Reader(given.feeds), **options)


def dynamic(given: Given, to: Path, **options: Any) -> None:
    """ONNX Runtime's, with the ranges of each call."""
    quantize_dynamic(given.file(), to, **options)


def modelopt(given: Given, to: Path, **options: Any) -> None:
    """NVIDIA's, made for TensorRT; what stays float is fp16 unless it is told otherwise, which CPUs do slowly."""
    quantize = importlib.import_module("modelopt.onnx.quantization").quantize
    quantize(
        str(given.file()),
        calibration_data_reader=Reader(given.feeds),
        calibration_eps=["cpu"],
        output_path=str(to),
        high_precision_dtype="fp32",
        log_level="ERROR",
        **options,
    )


# What onnxruntime's documentation advises for AVX2: 7 bits of weight. The pooling multiplies two activations.
LINEARS: Mapping[str, Any] = {"op_types_to_quantize": ["MatMul"], "per_channel": True, "reduce_range": True}
INPUTS_ALONE: Mapping[str, Any] = {
    **LINEARS,
    "activation_type": QuantType.QUInt8,
    "nodes_to_exclude": ["pooling/MatMul"],
    "extra_options": {"OpTypesToExcludeOutputQuantization": ["MatMul"]},
}
WAYS: Mapping[str, Way] = {
    "alula": ours,
    "alula-not-smoothed": partial(ours, smooth=False),
    "static": static,
    "static-linears": partial(static, **INPUTS_ALONE),
    "static-linears-smoothed-by-alula": partial(static, smoothed=True, **INPUTS_ALONE),
    "dynamic-linears": partial(dynamic, **LINEARS),
    "modelopt-entropy": partial(modelopt, calibration_method="entropy"),
    "modelopt-max": partial(modelopt, calibration_method="max"),
    "modelopt-max-linears": partial(modelopt, calibration_method="max", op_types_to_quantize=["MatMul"]),
}


def main() -> int:
    """Quantise with what is installed, then judge and measure every graph that is there."""
    HERE.mkdir(parents=True, exist_ok=True)
    checkpoint = families.open_checkpoint(str(packaged_minilm()))
    spec = families.describe(checkpoint, "embeddings")
    seen = questions_of(rows("seen", 96, 0), spec, SINGLE, checkpoint.root)
    given = Given(checkpoint=checkpoint, spec=spec, feeds=[unpadded(call) for call in seen])
    given.file()
    for name, way in WAYS.items():
        to = HERE / f"{name}.onnx"
        if to.exists() or ("modelopt" in name and importlib.util.find_spec("modelopt") is None):
            continue
        start = perf_counter()
        way(given, to)
        print(f"{name}: {perf_counter() - start:.1f} s", flush=True)
    there = [name for name in WAYS if (HERE / f"{name}.onnx").exists()]
    judge(["fp32", *there], questions_of(rows("others", 64, 1), spec, SERVED, checkpoint.root))
    print(f"\n{machine()}")
    return 0


def rows(name: str, count: int, seed: int) -> Dataset:
    """Sentences, no two sets alike."""
    file = HERE / f"{name}.txt"
    file.write_text("\n".join(sentences.sentences(count, seed)) + "\n", "utf-8")
    return read(file, "embeddings")


def unpadded(row: Feeds) -> Feeds:
    """One row without the cells that only fill."""
    length = int(row["attention_mask"].sum())
    return {name: array[:, :length] for name, array in row.items()}


def judge(names: Sequence[str], asked: Questions) -> None:
    """Loss against the first graph, speed as times the first's, and size, as a table."""
    promise, spec = Promise(questions=asked, budget=BUDGET), asked.spec
    files = {name: HERE / f"{name}.onnx" for name in names}
    outputs = {tensor.name: tensor.name for tensor in spec.part("encoder").outputs}
    with ExitStack() as stack:
        opened = [
            stack.enter_context(running_file(file, spec.part("encoder"), SERVED, outputs))
            for file in files.values()
        ]
        answers = [asked.ask(session) for session in opened]
        runners = [
            Contender(engine=name, precision="", session=one) for name, one in zip(names, opened, strict=True)
        ]
        ratios = measure(runners, spec, SHAPES, TURNS).ratios
    print("| quantiser | loss, mean and worst | times as fast, 1x128 and 8x128 | MB |\n|---|---|---|---|")
    for at, name in enumerate(names[1:], start=1):
        lost = " ".join(f"{check.worst:.4f}" for check in promise.judge(answers[0], answers[at], "own-graph"))
        found = [row.ratio for row in ratios[at - 1 :: len(names) - 1]]
        times = ", ".join(f"{one.median:.2f} [{one.low:.2f}-{one.high:.2f}]" for one in found)
        parts = (files[name], data_path(files[name]))
        size = sum(part.stat().st_size for part in parts if part.exists())
        print(f"| {name} | {lost} | {times} | {size / 1e6:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
