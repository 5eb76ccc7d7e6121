"""What an engine is compiled for, and how: what was asked for, what real traffic shows, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median, median_low

from alula.core.engine import Plan, Traits
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import DERIVED, GRID, Profile, Range, hull
from alula.core.progress import Progress
from alula.core.words import TENSORS, check_opset, precisions_of
from alula.data import read
from alula.engines import GPU
from alula.engines.dense import NARROWEST

DEFAULT_AXES = {"batch": Range(1, 8, 64), "length": Range(2, 128, 512), "width": Range(32, 320, 2048)}

PAGE_AXES = {"batch": Range(1, 1, 8), "height": Range(32, 736, 2048), "width": Range(32, 736, 2048)}
"""Of detectors of text: pages are rarely of one size, so that they are asked one by one."""

WRITING_AXES = {
    "batch": Range(1, 1, 64),
    "length": Range(1, 1, 512),
    "total": Range(1, 512, 1 << 20),
    "source": Range(1, 128, 1 << 20),
    "down": Range(2, 64, 4096),
    "across": Range(2, 64, 4096),
    "image_tokens": Range(1, 1, 1 << 20),
}
"""Of models that write text: rows of a step, new tokens of each, with those before them, and what an encoder reads.
Where images are read: patches of one, down and across, and tokens that all images of a step have.

Tuned for one token of one answer. A context may be as long as the model's: what a cache takes is for whoever runs it
to bound.
"""


GPU_AXES = {
    "batch": Range(1, 1, 8),
    "length": Range(1, 128, 256),
    "total": Range(1, 512, 2048),
    "source": Range(1, 128, 512),
    "down": Range(2, 64, 176),
    "across": Range(2, 64, 176),
    "image_tokens": Range(1, 1, 4096),
}
"""The same where a compiler reserves memory for the largest sizes, all at once: a prompt runs in pieces of no more
tokens than a server gives to a step, since scores that are written out are of all rows by all tokens of a piece.

176 patches of 16 pixels are the longer side of a page of 4 million pixels that is twice as long as wide, less a tenth:
all of A4, Letter and 16:9. Scores of 176 by 176 patches in 16 heads are taken in 15 pieces of 2 GiB (fp16).
"""

SEEING_TOTAL = Range(1, 1024, 8192)
"""Tokens on a GPU where images are read: a page of 4 million pixels is 4,162, and its answer stands behind them."""

# What a context does not bound: several sequences' images are in one step.
_OF_IMAGES = (*GRID, "image_tokens")

STEP = 8
"""Sizes that traffic shows are widened to multiples of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How to compile, as it was asked for; what is left out is the compiler's to choose.

    `profiles` are to be tuned for one by one, and need not name every axis; `traffic` is a file or folder of rows whose
    sizes say what to compile for.
    """

    profiles: tuple[Mapping[str, Range], ...] = ()
    traffic: Path | None = None
    workspace_bytes: int | None = None
    level: int | None = None
    time_limit_s: float | None = None
    portable: bool = False
    strip_weights: bool = False

    @property
    def settings(self) -> tuple[str, ...]:
        """The options given that say how to compile, by their names on the command line."""
        given = {
            "--workspace": self.workspace_bytes is not None,
            "--level": self.level is not None,
            "--time-limit": self.time_limit_s is not None,
            "--portable": self.portable,
            "--strip-weights": self.strip_weights,
        }
        return tuple(option for option, is_given in given.items() if is_given)


def precisions_here(engine: str, wanted: str, traits: Traits, *, writes: bool = False) -> tuple[str, ...]:
    """The precisions to try, highest first: of those asked for, what this version has.

    Where nothing can be run nothing can be measured, so that one must be named there. A model that `writes` text has
    precisions of its own.
    """
    named = [word.strip() for word in wanted.split(",")]
    found = precisions_of(engine, wanted, writes=writes)
    for word in named:
        if word in traits.lacks:
            raise InputError(f"precision {word!r}: {traits.lacks[word]}")
    found = tuple(precision for precision in found if precision not in traits.lacks)
    if not found:
        raise InputError(f"precision {wanted!r}: {engine} has none of these here")
    if traits.cannot_run and ({*named} != {found[0]} or found[0].endswith("-mixed")):
        raise InputError(
            f"precision {wanted!r} is chosen by measurement, and nothing that is compiled for {engine} runs here: "
            f"{traits.cannot_run}; name one precision, such as --precision fp16"
        )
    return found


def impossible(precisions: tuple[str, ...], wanted: str, why: str) -> dict[str, str]:
    """The precisions that a model cannot be built in, each with the reason; one that was named is refused."""
    if not why:
        return {}
    named = [word.strip() for word in wanted.split(",")]
    if refused := [word for word in named if word not in {"auto", "fp32"}]:
        raise InputError(f"precision {refused[0]!r}: {why}; build it with --precision fp32")
    return {precision: why for precision in precisions if precision != "fp32"}


def opset_here(engine: str, asked: int | None, traits: Traits) -> int | None:
    """The opset asked for, or the newest that this version reads; None leaves it to whoever writes the graph."""
    if asked is None:
        return traits.opset
    check_opset(asked)
    if traits.opset is not None and asked > traits.opset:
        raise InputError(f"--opset {asked}: the {engine} that is here reads {traits.opset} at most")
    return asked


def refuse_disobeyed(engine: str, axes: Mapping[str, Range], wanted: Wanted, traits: Traits) -> None:
    """Refuse what an engine, or the version of it that is here, cannot obey."""
    profiles = len(wanted.profiles) + _all_replace(axes, wanted)
    if engine not in GPU:
        if wanted.settings:
            raise InputError(
                f"{wanted.settings[0]} is not for {engine}, which has nothing like it; it is for {', '.join(GPU)}"
            )
        if profiles > 1:
            raise InputError(
                f"{profiles} profiles; {engine} takes one, and is as fast anywhere within it: give the "
                f"sizes with --batch and --length, or one --profile; several are for {', '.join(GPU)}"
            )
    if traits.cannot_compile:
        raise InputError(f"nothing can be compiled for {engine} here: {traits.cannot_compile}")
    for option in wanted.settings:
        if option in traits.lacks:
            raise InputError(f"{option}: {traits.lacks[option]}")


def asked_of(axes: Mapping[str, Range], wanted: Wanted) -> dict[str, Range]:
    """What is asked for of each axis, over all profiles."""
    every = [axes, *wanted.profiles]
    names = dict.fromkeys(axis for each in every for axis in each)
    return {
        axis: hull([Profile({axis: each[axis]}) for each in every if axis in each]).axes[axis]
        for axis in names
    }


def plan_of(
    spec: ModelSpec,
    axes: Mapping[str, Range],
    wanted: Wanted,
    seen: Mapping[str, Range] | None = None,
    engine: str = "",
) -> Plan:
    """The ranges given, those `seen` in traffic or that pages may have, and defaults cut to what the model takes.

    A range that every profile replaces would say nothing, so where there is one all of these are a profile too.
    """
    seen, on_gpu = seen or {}, engine in GPU
    if spec.writes and on_gpu and not wanted.profiles:
        wanted = replace(wanted, profiles=_steps_and_prompts(axes))
    base = _complete(spec, axes, seen, on_gpu=on_gpu)
    profiles = [_complete(spec, {**axes, **own}, seen, on_gpu=on_gpu) for own in wanted.profiles]
    if not profiles or (_all_replace(axes, wanted) and not (spec.writes and on_gpu)):
        profiles.insert(0, base)
    different = tuple(profile for at, profile in enumerate(profiles) if profile not in profiles[:at])
    return Plan(
        profile=hull(different),
        tuned=different if len(different) > 1 else (),
        workspace_bytes=wanted.workspace_bytes,
        level=wanted.level,
        time_limit_s=wanted.time_limit_s,
        portable=wanted.portable,
        strip_weights=wanted.strip_weights,
    )


def _steps_and_prompts(axes: Mapping[str, Range]) -> tuple[Mapping[str, Range], ...]:
    """One token of several answers, and prompts one by one: kernels of one would be slow for the other."""
    step, one_by_one = {"length": Range(1, 1, 1)}, {"batch": Range(1, 1, 1)}
    prompts = "length" not in axes or axes["length"].max > 1
    return (step, one_by_one) if prompts else (step,)


def _all_replace(axes: Mapping[str, Range], wanted: Wanted) -> bool:
    """Whether some range that was given is replaced by every profile."""
    return bool(wanted.profiles) and any(all(axis in own for own in wanted.profiles) for axis in axes)


def _complete(
    spec: ModelSpec, given: Mapping[str, Range], seen: Mapping[str, Range], *, on_gpu: bool
) -> Profile:
    if spec.writes:
        return _writing(spec, {**seen, **given}, on_gpu=on_gpu)
    known = spec.part("encoder").axes
    if unknown := sorted(set(given) - set(known)):
        has = ", ".join(sorted(known)) or "none that is open: all of its sizes are fixed"
        raise InputError(f"no axis {unknown[0]!r}; {spec.name} has {has}")
    ranges = {**_usual(spec), **seen, **given}
    if lacking := [axis for axis in known if axis not in ranges]:
        options = " ".join(f"--axis {axis}=MIN:OPT:MAX" for axis in lacking)
        shown = ", ".join(str(tensor) for tensor in spec.part("encoder").inputs)
        raise InputError(
            f"axis {lacking[0]!r} of {spec.name} has no usual sizes ({shown}); give {options}"
            + ("; --inputs fixes or renames axes" if spec.task == TENSORS else "")
        )
    axes = {axis: ranges[axis] for axis in sorted(known)}
    if not spec.reads_text:
        return Profile(axes)
    length, longest = axes["length"], spec.max_length
    if "length" not in given:
        axes["length"] = _at_most(length, longest)
    elif length.max > longest:
        raise InputError(f"axis 'length' up to {length.max}; {spec.name} takes {longest} tokens at most")
    return Profile(axes)


def grids(least_pixels: int, most_pixels: int, step: int) -> dict[str, Range]:
    """Patches of a checkpoint's pages, down and across, for a GPU; `step` pixels are two patches. Pure.

    Tuned for a square page midway between the fewest and the most pixels; a side has what `GPU_AXES` has at most.
    """
    most = min(GPU_AXES[GRID[0]].max, 2 * ceil(most_pixels / step / step))
    tuned = 2 * round((least_pixels * most_pixels) ** 0.25 / step)
    return dict.fromkeys(GRID, Range(2, max(2, min(tuned, most)), most))


def _writing(spec: ModelSpec, given: Mapping[str, Range], *, on_gpu: bool) -> Profile:
    """The sizes of all parts of a model that writes text.

    On a GPU a cache has room for all that it may hold from the first step on, and new tokens lie beside it.
    """
    known = [axis for part in spec.parts for axis in part.axes if axis not in DERIVED]
    for axis in given:
        if axis in DERIVED:
            raise InputError(f"axis {axis!r} is {DERIVED[axis]}, and not given")
        if axis not in known:
            raise InputError(f"no axis {axis!r}; {spec.name} has {', '.join(sorted(set(known)))}")
    if "total" in given and not spec.reads_source and given["total"].max > spec.max_length:
        raise InputError(
            f"axis 'total' up to {given['total'].max}; {spec.name} takes {spec.max_length} tokens at most"
        )
    usually = GPU_AXES if on_gpu else WRITING_AXES
    if on_gpu and spec.sees:
        usually = {**usually, "total": SEEING_TOTAL}
    usual = {
        axis: usually[axis] if axis in _OF_IMAGES else _at_most(usually[axis], spec.max_length)
        for axis in known
        if axis != "batch"
    }
    axes = {"batch": usually["batch"], **usual, **given}
    total = axes["total"]
    length = given.get("length", _at_most(axes["length"], total.max))
    if length.min > 1:
        raise InputError(f"axis 'length' from {length.min}; answers are written token by token, so from 1")
    if length.max > total.max:
        raise InputError(
            f"axis 'length' up to {length.max}, and 'total', which has it in it, up to {total.max}"
        )
    if on_gpu:
        narrowest = max(min(NARROWEST, total.max), total.min)
        past = Range(narrowest, max(total.opt, narrowest), total.max)
        total = Range(*(getattr(past, end) + getattr(length, end) for end in ("min", "opt", "max")))
        axes.update(length=length, past=past, total=total, answers=Range(1, 1, 1))
    else:
        past = Range(0, max(0, total.opt - length.opt), total.max - 1, least=0)
        axes.update(length=length, past=past, answers=Range(1, 1, length.max))
    return Profile({axis: axes[axis] for axis in sorted(axes)})


def _at_most(sizes: Range, most: int) -> Range:
    return Range(*(min(size, most) for size in (sizes.min, sizes.opt, sizes.max)))


def _usual(spec: ModelSpec) -> Mapping[str, Range]:
    """The ranges of axes that nothing is said about; of a file of which only the tensors are known, of rows alone."""
    if spec.task == "text-detection":
        return PAGE_AXES
    return {"batch": DEFAULT_AXES["batch"]} if spec.task == TENSORS else DEFAULT_AXES


def seen_in(
    traffic: Path, spec: ModelSpec, folder: Path, progress: Progress, *, skip_bad: bool = False
) -> dict[str, Range]:
    """The ranges of the axes that rows decide; `folder` holds the tokenizer or the image processor."""
    if spec.writes:
        raise InputError("--profile-from is for models that answer in one call; give sizes with --axis")
    # Not at the top: a build without traffic needs no tokenizer, and one of texts no Pillow.
    from alula.questions import sizes_of  # noqa: PLC0415

    with progress.phase(f"read the traffic in {traffic.name}"):
        data = read(traffic, spec.task, skip_bad=skip_bad, inputs=spec.part("encoder").inputs)
        sizes = sizes_of(data, spec, folder)
    if not sizes:
        raise InputError(f"--profile-from {traffic}: {spec.name} has no axis that its rows decide")
    most = spec.max_length if spec.reads_text else None
    if spec.task == TENSORS:
        # A size that nobody gave may be one that the network does not take.
        ranges = {axis: Range(min(found), median_low(found), max(found)) for axis, found in sizes.items()}
    else:
        ranges = {axis: range_of(found, DEFAULT_AXES.get(axis), most) for axis, found in sizes.items()}
    shown = ", ".join(f"{axis} {sizes}" for axis, sizes in ranges.items())
    with progress.phase(f"profile from {len(data.examples)} rows of {traffic.name}: {shown}"):
        return ranges


def range_of(sizes: Sequence[int], usual: Range | None = None, most: int | None = None) -> Range:
    """From the smallest size, rounded down, over their median to the largest, both rounded up, to multiples of STEP.

    It begins no lower than the `usual` range, and ends at what the model takes at `most`. Pure.
    """
    high = ceil(max(sizes) / STEP) * STEP
    high = high if most is None else min(high, most)
    low = min(max(usual.min if usual else 1, min(sizes) // STEP * STEP), high)
    return Range(low, min(max(low, ceil(median(sizes) / STEP) * STEP), high), high)
