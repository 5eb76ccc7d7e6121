"""The command line, as a value."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from gpu_bench import cases, record
from gpu_bench.cases import CONTENDERS, Case, Tune
from gpu_bench.measuring import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = ("bert", "resnet50", "dinov2")
"""Checkpoints that are written with random weights where no folder is given."""
GIVEN = ("minilm", "open_nsfw", "dinov2")
"""Checkpoints that can be given as folders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What was asked for."""

    phase: str
    dry: bool
    cases: tuple[Case, ...]
    contenders: tuple[str, ...]
    work: Path
    out: Path
    python: Mapping[str, tuple[str, ...]]
    target: str
    given: Mapping[str, Path]
    tune: Tune
    level: int | None
    jobs: int
    build_limit_s: float
    settings: Settings

    @property
    def models(self) -> Path:
        """Where checkpoints are written."""
        return self.work / ("models-tiny" if self.dry else "models")

    def folder(self, case: Case) -> Path | None:
        """Where the checkpoint of a case lies; None where nobody gave one."""
        if case.folder in self.given:
            return self.given[case.folder]
        return self.models / case.folder if case.folder in MADE else None

    def names(self, case: Case) -> tuple[str, ...]:
        """Who takes part in a case."""
        return tuple(name for name in self.contenders if name in case.contenders)

    def engine(self, case: Case, name: str) -> Path:
        """Where an engine lies."""
        return self.work / "engines" / case.name / name

    def env(self) -> dict[str, str]:
        """What workers find: the package, this folder, and caches that stay in the working folder."""
        paths = [ROOT / "src", ROOT / "examples", ROOT / "tests" / "models"]
        known = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *([known] if known else [])]),
            "ALULA_CACHE": str(self.work / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TRITON_CACHE_DIR": str(self.work / "triton"),
            "HF_HUB_OFFLINE": "1",
        }

    def torch(self, case: Case, folder: Path, name: str) -> list[str]:
        """The command of a worker with PyTorch."""
        chosen = CONTENDERS[name]
        device = "cpu" if self.dry else "cuda"
        module = ("-m", "gpu_bench.torch_side")
        return [*self.python["torch"], *module, str(folder), chosen.form, chosen.precision, device]

    def command(self, case: Case, folder: Path, name: str) -> list[str]:
        """The command of any worker."""
        if CONTENDERS[name].side == "torch":
            return self.torch(case, folder, name)
        path = self.engine(case, name) / record.NAME
        return [*self.python["tensorrt"], "-m", "gpu_bench.engine_side", str(path)]

    def log(self, *parts: str) -> Path:
        """Where what a process prints goes."""
        return self.work / "logs" / f"{'.'.join(parts)}.log".replace(" ", "-")


def parsed(args: Sequence[str], about: str | None) -> Bench:
    """Read it."""
    parser = argparse.ArgumentParser(
        prog="bench_gpu.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("phase", choices=["prepare", "build", "measure", "all"])
    parser.add_argument("--models", default="", metavar="A,B", help=f"of {', '.join(cases.CASES)}")
    parser.add_argument("--contenders", default="", metavar="A,B", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument(
        "--work", type=Path, default=Path("build/bench-gpu"), help="what is kept between phases"
    )
    parser.add_argument("--out", type=Path, help="where results go (default: in the working folder)")
    parser.add_argument("--python-torch", default=sys.executable, metavar="COMMAND")
    parser.add_argument("--python-tensorrt", default=sys.executable, metavar="COMMAND")
    for name in GIVEN:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=name, type=Path, metavar="FOLDER", help="a checkpoint")
    parser.add_argument("--tune", choices=get_args(Tune), default="range", help="the profiles of an engine")
    parser.add_argument("--level", type=int, help="TensorRT's effort, 0 to 5")
    parser.add_argument("--jobs", type=int, default=4, help="engines built at once, and models compiled")
    parser.add_argument("--build-limit", type=float, default=540.0, metavar="S", help="for one engine")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="for one step of a worker")
    parser.add_argument(
        "--case-limit", type=float, default=900.0, metavar="S", help="no further shape is begun after it"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn-ms", type=float, default=50.0)
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny models, ONNX Runtime, PyTorch on the CPU"
    )
    given = parser.parse_args(args)
    folders = {name: getattr(given, name) for name in GIVEN if getattr(given, name)}
    work = given.work.absolute()
    return Bench(
        phase=given.phase,
        dry=given.dry_run,
        cases=tuple(cases.cases(given.models, dry=given.dry_run)),
        contenders=cases.contenders(given.contenders),
        work=work,
        out=given.out.absolute() if given.out else work / "results",
        python={
            "torch": tuple(shlex.split(given.python_torch)),
            "tensorrt": tuple(shlex.split(given.python_tensorrt)),
        },
        target="onnxruntime" if given.dry_run else "tensorrt",
        given=folders,
        tune=given.tune,
        level=given.level,
        jobs=given.jobs,
        build_limit_s=given.build_limit,
        settings=Settings(
            rounds=given.rounds,
            turn_ms=given.turn_ms,
            patience_s=given.patience,
            case_s=given.case_limit,
        ),
    )
