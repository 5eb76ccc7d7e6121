r"""HunyuanOCR at its published sizes on a GPU, PyTorch and TensorRT in turns in one run. docs/gpu.md says how.

    export PYTHONPATH=src:tests/models
    B="python3 examples/bench_gpu_ocr.py --work W"
    T='bash -c "source env.sh && exec python3.10 \"$@\"" --'
    $B prepare                              # the checkpoint with random weights, 4 GB
    $B graphs --opset 17                    # its parts' graphs, which need no compiler
    $B prime                                # what PyTorch compiles, into its cache
    $B build --opset 17 --python-tensorrt "$T"  # its parts, each a process with a limit; what is built stays
    $B measure --python-tensorrt "$T"       # W/results.json and W/results.md, written after every case
    $B all --dry-run                        # a small model, ONNX Runtime and PyTorch on the CPU
    $B all --dry-run --target tensorrt --opset 17 --by onnxruntime  # the same with what TensorRT 8.6 gets
    $B build --dry-run --target tensorrt-rtx --opset 17     # which is compiled without a GPU

Every phase goes on where it was left: parts and cases that are there are not made again (--again does). Each contender
is a process of its own; one that takes longer than a case's limit is ended, the case says so, and the others go on. The
exit code is 1 where a limit does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpu_bench.ocr_building import build, prepare, write_graphs
from gpu_bench.ocr_cases import PARTS
from gpu_bench.ocr_measuring import measure, prime
from gpu_bench.ocr_report import markdown, verdicts

PHASES = ("prepare", "graphs", "prime", "build", "measure", "all")
_MAKING: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "prepare": prepare,
    "graphs": write_graphs,
    "prime": prime,
    "build": build,
}
_ALL = ("prepare", "build", "measure")


def main(args: Sequence[str] | None = None) -> int:
    """0 if every limit holds."""
    options = parsed(args)
    options.work.mkdir(parents=True, exist_ok=True)
    for phase in _ALL if options.phase == "all" else (options.phase,):
        if phase == "measure":
            results = measure(options)
            print(markdown(results), flush=True)
            return int(not all(each.holds for each in verdicts(results)))
        _MAKING[phase](options)
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
    parser.add_argument(
        "--parts", default=",".join(usual_parts()), help="of those that there are, with commas"
    )
    parser.add_argument("--target", help="what parts are compiled for: tensorrt, in a dry run onnxruntime")
    parser.add_argument(
        "--by", default="", help="an engine that takes the same graphs, where the target's is not there"
    )
    parser.add_argument(
        "--opset", type=int, help="of graphs, where the compiler that reads them is not there"
    )
    parser.add_argument("--level", type=levels, default={}, help="TensorRT's, of all parts or PART=LEVEL,...")
    parser.add_argument("--part-limit", type=float, default=480.0, help="seconds that a part may build")
    parser.add_argument("--jobs", type=int, default=2, help="parts that are built at once")
    parser.add_argument("--cases", default="", help="of those that there are, by name, with commas")
    parser.add_argument("--contenders", default="", help="likewise; PyTorch fp32 always takes part")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--until", type=float, default=540.0, help="seconds after which no case is begun")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(args)
    options.target = options.target or ("onnxruntime" if options.dry_run else "tensorrt")
    return options


def usual_parts() -> list[str]:
    """Those of every contender, in the order in which they are worth building; decoders in blocks."""
    return list(dict.fromkeys(part for forms in PARTS.values() for part in forms[-1]))


def levels(text: str) -> dict[str, int]:
    """Levels of parts by name, of all others by the empty one: "1", or "2,vision-page=1"."""
    pairs = [each.rpartition("=") for each in text.split(",")]
    return {name: int(level) for name, _, level in pairs}


if __name__ == "__main__":
    sys.exit(main())
