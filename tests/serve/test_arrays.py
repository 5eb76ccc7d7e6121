"""Requests whose arrays run in one batch: a shape that the engine does not take is the fault of those who sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import served

from alula.bundles import Bundle
from alula.core.errors import RunError, ShapeError
from alula.core.tensor import Feeds
from alula.serve import ServeOptions
from alula.serve.arrays import Arrays
from alula.serve.outcome import Outcome


async def engine(feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
    await asyncio.sleep(0)
    if feeds["x"].shape[1] == 7:
        raise ShapeError("the network does not take wide 7")
    if feeds["x"].shape[1] == 6:
        raise RunError("bad kernel")
    return Outcome(outputs={"sum": feeds["x"] + 1, "rows": np.ones((len(feeds["x"]), 1), np.float32)})


def rows(count: int, wide: int) -> Feeds:
    return {"x": np.full((count, wide), wide, np.float32), "k": np.zeros(count, np.int32)}


def answers(tmp_path: Path, *asked: Feeds) -> list[Feeds | BaseException]:
    """Those of requests that come together."""
    bundle = Bundle.open(served.make_arrays(tmp_path / "arrays"))
    service = Arrays(bundle, engine, ServeOptions(bundles=(bundle.root,)), lambda name, ran: None)

    async def all_of_them() -> list[Feeds | BaseException]:
        async with service.at_work():
            return await asyncio.gather(*map(service.answer, asked), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_a_shape_that_is_not_taken_fails_for_those_alone_who_sent_it(tmp_path: Path) -> None:
    good, bad, well = answers(tmp_path, rows(1, 3), rows(2, 7), rows(1, 4))
    assert isinstance(good, dict)
    assert isinstance(well, dict)
    assert good["sum"].tolist() == [[4, 4, 4]]
    assert well["sum"].tolist() == [[5, 5, 5, 5]]
    assert isinstance(bad, ShapeError)
    assert "wide 7" in str(bad)


def test_an_engine_that_fails_fails_for_the_batch(tmp_path: Path) -> None:
    good, bad = answers(tmp_path, rows(1, 3), rows(2, 6))
    assert isinstance(bad, RunError)
    assert isinstance(good, RunError)
