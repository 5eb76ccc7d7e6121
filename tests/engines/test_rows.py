"""What lies side by side, and in how many calls."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alula.core.profile import Profile
from alula.core.tensor import TensorSpec
from alula.engines.caches import Arrays
from alula.engines.fake import session
from alula.engines.rows import Rows, partition, side_by_side


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    spare=st.integers(0, 200),
    rows=st.integers(1, 5),
)
def test_a_partition_has_everybody_once_within_its_bounds(lengths: list[int], spare: int, rows: int) -> None:
    cells = sum(lengths) + spare
    groups = partition(lengths, cells=cells, rows=rows)
    assert sorted(at for group in groups for at in group) == list(range(len(lengths)))
    assert all(1 <= len(group) <= rows for group in groups)
    assert sum(len(group) * max(lengths[at] for at in group) for group in groups) <= cells
    if len(lengths) * max(lengths) <= cells:
        assert len(groups) == -(-len(lengths) // rows)


def test_padding_is_zeros_whatever_lay_there() -> None:
    """What is hidden may be anything finite, and no more than that."""
    past = np.full((1, 1, 6, 2), np.nan, np.float32)
    past[:, :, 4:] = 1
    cross = np.full((1, 1, 5, 2), np.nan, np.float32)
    cross[:, :, :3] = 2
    spec = TensorSpec(name="past.0.key", dtype="float32", shape=("batch", 1, "past", 2))
    caches = Arrays(session((spec,), (), Profile({}), dict))
    rows = Rows(
        members=(5,),
        lengths=(2,),
        sources=(3,),
        width=6,
        source=5,
        count=1,
        past={"past.0.key": past},
        cross={"cross.0.key": cross},
    )
    for _ in range(20):
        dirt = [np.full((3, 1, 4, 2), np.nan, np.float32) for _ in range(8)]
        del dirt  # what is allocated next may lie where this was
        made = side_by_side(caches, [(rows, 5), (rows, 5)], width=4, source=4, count=3)
        assert made.past["past.0.key"].tolist() == [[[[0, 0]] * 2 + [[1, 1]] * 2]] * 3
        assert made.cross["cross.0.key"].tolist() == [[[[2, 2]] * 3 + [[0, 0]]]] * 3
