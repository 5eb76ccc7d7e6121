"""Which models are measured, at which sizes, and who takes part. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from alula.core.engine import Plan
from alula.core.errors import InputError
from alula.core.profile import Profile, Range, hull

Shape = tuple[int, ...]
Tune = Literal["range", "cells", "each"]

BASELINE = "torch-fp32"
"""What speeds and errors are compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """Who computes, at which precision, and for PyTorch in which form."""

    side: Literal["torch", "engine"]
    precision: str
    form: Literal["eager", "compiled", "captured", ""] = ""


CONTENDERS: Mapping[str, Contender] = {
    "torch-fp32": Contender(side="torch", precision="fp32", form="eager"),
    "torch-fp16": Contender(side="torch", precision="fp16", form="eager"),
    # torch.compile with the CUDA graphs of its mode "reduce-overhead", called as a user calls it.
    "torch-compile-fp16": Contender(side="torch", precision="fp16", form="compiled"),
    # torch.compile without them, captured by hand: no guards are checked and no inputs moved at a call.
    "torch-graph-fp16": Contender(side="torch", precision="fp16", form="captured"),
    "tensorrt-fp32": Contender(side="engine", precision="fp32"),
    "tensorrt-fp16": Contender(side="engine", precision="fp16"),
    "tensorrt-int8": Contender(side="engine", precision="int8"),
}
USUAL = tuple(name for name in CONTENDERS if name != "torch-graph-fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model and the sizes it is measured at; `axes` is what its engine is built for, in the order of a shape.

    `folder` names its checkpoint, `cells` are narrower profiles for `--tune cells`, `calibration` the shape and number
    of calls that int8 sees (of `sentences` it sees more), `sets` how many inputs take turns, `openings` how often
    loading is timed.
    """

    name: str
    what: str
    folder: str
    axes: Mapping[str, Range]
    shapes: tuple[Shape, ...]
    cells: tuple[Mapping[str, Range], ...] = ()
    calibration: tuple[Shape, int] = ((4,), 8)
    sentences: bool = False
    contenders: tuple[str, ...] = USUAL
    sets: int = 4
    openings: int = 1

    @property
    def largest(self) -> Shape:
        """The shape with the most cells; of equal ones the one with the longest rows, where attention takes most."""
        return max(self.shapes, key=lambda shape: (prod(shape), shape[-1]))

    @property
    def opened(self) -> Mapping[str, Range]:
        """The sides of an image that are axes here, and fixed by its processor otherwise."""
        return {axis: sizes for axis, sizes in self.axes.items() if axis in {"height", "width"}}

    def sizes(self, shape: Shape) -> dict[str, int]:
        """A shape by axis."""
        return dict(zip(self.axes, shape, strict=True))


_TEXT = {"batch": Range(1, 8, 32), "length": Range(16, 128, 512)}
_TEXT_CELLS = (
    {"batch": Range(1, 8, 32), "length": Range(128, 128, 128)},
    {"batch": Range(1, 8, 8), "length": Range(512, 512, 512)},
)
_TEXT_SHAPES = ((1, 128), (8, 128), (32, 128), (8, 512))
_IMAGES = {"batch": Range(1, 8, 32)}
_IMAGE_SHAPES = ((1,), (8,), (32,))
_SIDES = (320, 480, 640, 800, 960, 1280)
_IN_SIZES = ("torch-fp32", "torch-fp16", "tensorrt-fp16")


def _sizes(batch: int) -> dict[str, Range]:
    sides = Range(_SIDES[0], 640, _SIDES[-1])
    return {"batch": Range(batch, batch, batch), "height": sides, "width": sides}


_CASES = (
    Case(
        name="bert",
        what="BERT-base, random weights, mean pooling",
        folder="bert",
        axes=_TEXT,
        cells=_TEXT_CELLS,
        shapes=_TEXT_SHAPES,
        calibration=((4, 128), 8),
        contenders=tuple(CONTENDERS),
        openings=6,
    ),
    Case(
        name="minilm",
        what="all-MiniLM-L6-v2",
        folder="minilm",
        axes=_TEXT,
        cells=_TEXT_CELLS,
        shapes=_TEXT_SHAPES,
        calibration=((4, 128), 4),
        sentences=True,
    ),
    Case(
        name="resnet50",
        what="ResNet-50, random weights, 224 x 224",
        folder="resnet50",
        axes=_IMAGES,
        shapes=_IMAGE_SHAPES,
    ),
    Case(
        name="open_nsfw", what="open_nsfw, 224 x 224", folder="open_nsfw", axes=_IMAGES, shapes=_IMAGE_SHAPES
    ),
    Case(
        name="dinov2",
        what="DINOv2-small, 224 x 224",
        folder="dinov2",
        axes=_IMAGES,
        shapes=_IMAGE_SHAPES,
    ),
    Case(
        name="resnet50-sizes",
        what="one ResNet-50 engine for 320:640:1280 pixels",
        folder="resnet50",
        axes=_sizes(8),
        shapes=tuple((8, side, side) for side in _SIDES),
        calibration=((2, 320, 320), 2),
        contenders=_IN_SIZES,
        sets=2,
    ),
    Case(
        name="dinov2-sizes",
        what="one DINOv2-small engine for 320:640:1280 pixels",
        folder="dinov2",
        # Eight images of 1280 x 1280 have more attention scores than the 2^31 - 1 elements of a TensorRT tensor.
        axes=_sizes(4),
        shapes=tuple((4, side, side) for side in _SIDES),
        calibration=((2, 320, 320), 2),
        contenders=_IN_SIZES,
        sets=2,
    ),
)
CASES: Mapping[str, Case] = {case.name: case for case in _CASES}


def tiny(case: Case) -> Case:
    """The same with sizes that a CPU runs in milliseconds; for `--dry-run`."""
    if "length" in case.axes:
        axes = {"batch": Range(1, 2, 2), "length": Range(4, 8, 16)}
        return replace(
            case,
            axes=axes,
            cells=(axes,),
            shapes=((1, 8), (2, 16)),
            calibration=((2, 8), 2),
            sentences=False,
            openings=min(case.openings, 2),
        )
    if case.opened:
        sides = Range(32, 48, 64)
        axes = {"batch": Range(2, 2, 2), "height": sides, "width": sides}
        shapes = tuple((2, side, side) for side in (32, 48, 64))
        return replace(case, axes=axes, shapes=shapes, calibration=((2, 32, 32), 2))
    return replace(case, axes={"batch": Range(1, 2, 2)}, shapes=((1,), (2,)), calibration=((2,), 2))


def cases(names: str, *, dry: bool) -> list[Case]:
    """Those named, separated by commas, in that order; all where none is."""
    chosen = [name.strip() for name in names.split(",")] if names else [*CASES]
    if unknown := [name for name in chosen if name not in CASES]:
        raise InputError(f"--models {unknown[0]!r} is not one of: {', '.join(CASES)}")
    return [tiny(CASES[name]) if dry else CASES[name] for name in dict.fromkeys(chosen)]


def contenders(names: str) -> tuple[str, ...]:
    """Those named, in the order of the tables; all where none is. Each case takes of them what it is measured with."""
    chosen = {name.strip() for name in names.split(",")} if names else {*CONTENDERS}
    if unknown := sorted(chosen - {*CONTENDERS}):
        raise InputError(f"--contenders {unknown[0]!r} is not one of: {', '.join(CONTENDERS)}")
    return tuple(name for name in CONTENDERS if name in chosen)


def plan_of(case: Case, tune: Tune, *, level: int | None = None, limit_s: float | None = None) -> Plan:
    """What an engine is compiled for.

    `range` is one profile over all sizes, as the usual command line asks for; `cells` are some narrower ones; `each`
    is one profile for every shape that is measured and nothing between them.
    """
    profiles = [Profile(case.axes)]
    if tune == "cells" and case.cells:
        profiles = [Profile(axes) for axes in case.cells]
    if tune == "each":
        profiles = [
            Profile({axis: Range(size, size, size) for axis, size in case.sizes(shape).items()})
            for shape in case.shapes
        ]
    tuned = tuple(profiles) if len(profiles) > 1 else ()
    return Plan(profile=hull(profiles), tuned=tuned, level=level, time_limit_s=limit_s)


def shape_named(name: str) -> Shape:
    """The shape that `alula.bench.shape_name` gave this name."""
    return tuple(int(size) for size in name.split("x"))
