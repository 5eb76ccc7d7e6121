"""Arrays in, arrays out, for `alula run --feeds`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from alula.bundles import Bundle
from alula.cli.bench import check_figure
from alula.cli.console import number, print_json, print_rows
from alula.core.errors import InputError
from alula.core.tensor import Feeds, TensorSpec
from alula.core.words import TENSORS
from alula.data import read_feeds, write_arrays


def check_feeds(bundle: Bundle, feeds: Path | None, out: Path | None, *, others: bool) -> None:
    """Refuse arrays for a model that takes none, all else for one that takes arrays, and a file nobody can write."""
    task = bundle.model.task
    if task != TENSORS:
        option = "--out" if feeds is None else "--feeds"
        raise InputError(f"{option} is not for task {task!r}, which takes no arrays")
    if others or feeds is None:
        inputs = " ".join(f"'{tensor}'" for tensor in bundle.model.parts[0].inputs)
        raise InputError(f"task {task!r} takes --feeds FILE.npz, and nothing else; its arrays are {inputs}")
    if out is not None:
        if out.suffix.lower() != ".npz":
            raise InputError(f"--out {out}: expected a file that ends in .npz")
        check_figure(out, "--out")


def show_outputs(bundle: Bundle, feeds: Path, out: Path | None, *, as_json: bool) -> None:
    """Run the bundle on the arrays of a file, write what it gives, and print what that is like."""
    outputs = outputs_of(bundle, feeds)
    if out is not None:
        write_arrays(out, outputs)
    rows, model = summaries(outputs), bundle.model
    if as_json:
        print_json("run", rows, model=model.name, task=model.task)
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    print_rows(f"{model.name}, {model.task}", list(rows[0]), cells)


def outputs_of(bundle: Bundle, feeds: Path) -> Feeds:
    """What the bundle's engine gives for the arrays of a file."""
    from alula.engines import backend  # noqa: PLC0415 - loads a runtime
    from alula.local import local_engine  # noqa: PLC0415

    given = read_feeds(feeds, bundle.model.parts[0].inputs)
    refuse_outside(feeds, bundle.model.parts[0].inputs, given)
    engine = local_engine(bundle)
    with closing(backend(engine.backend).open(engine)) as session:
        return session.run(given)


def refuse_outside(path: Path, inputs: Sequence[TensorSpec], feeds: Feeds) -> None:
    """Refuse whole numbers that an input is not known to take: those beyond a table get an answer from some engines."""
    for tensor in inputs:
        array = feeds[tensor.name]
        if tensor.range is None or array.dtype.kind not in "iu" or not array.size:
            continue
        low, high = tensor.range
        if odd := [int(end) for end in (array.min(), array.max()) if not low <= end <= high]:
            raise InputError(
                f"{path}: {tensor.name!r} holds {odd[0]}, and the bundle takes '{tensor}'; more is taken where it is "
                "built with --inputs and a wider range behind the input"
            )


def summaries(outputs: Feeds) -> list[dict[str, Any]]:
    """Shape, type and range of each output; NaN shows in all three."""
    rows = []
    for name, array in outputs.items():
        numbers = np.asarray(array, np.float64)
        ends = [float(of(numbers)) if numbers.size else None for of in (np.min, np.mean, np.max)]
        shape = "x".join(map(str, array.shape)) or "one number"
        about = {"output": name, "shape": shape, "dtype": str(array.dtype)}
        rows.append({**about, **dict(zip(("min", "mean", "max"), ends, strict=True))})
    return rows


def _cell(value: object) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)
