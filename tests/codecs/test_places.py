"""Places of tokens on four axes, as transformers counts them for a prompt alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from alula.codecs.places import places_of
from alula.core.errors import InputError

IMAGE = 93


def prompt(grids: list[tuple[int, int]]) -> list[int]:
    ids = [5, 6]
    for rows, columns in grids:
        ids += [91, *[IMAGE] * (rows * (columns + 1) + 2), 92, 7]
    return [*ids, 9]


@pytest.mark.parametrize("grids", [[], [(2, 3)], [(3, 2), (1, 4), (5, 5)]])
def test_places_are_those_of_transformers(grids: list[tuple[int, int]]) -> None:
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.hunyuan_vl.modeling_hunyuan_vl")
    ids = prompt(grids)
    # What the method reads of a model, which would take seconds to make.
    rope = SimpleNamespace(rope_parameters={"mrope_section": [2] * 4})
    config = SimpleNamespace(text_config=rope, vision_config=SimpleNamespace(spatial_merge_size=2))
    model = SimpleNamespace(config=config, get_vision_position_ids=None)
    model.get_vision_position_ids = lambda *args, **more: module.HunYuanVLModel.get_vision_position_ids(
        model, *args, **more
    )
    sizes = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in grids]) if grids else None
    kinds = (torch.tensor([ids]) == IMAGE).int()
    wanted, delta = module.HunYuanVLModel.get_rope_index(model, torch.tensor([ids]), kinds, sizes)
    assert np.array_equal(places_of(ids, IMAGE, grids), wanted[:, 0].numpy())
    assert not delta.any(), "what comes next has the length of all before as its place"


def test_every_prompt_counts_its_own_images() -> None:
    """transformers 5.23 goes on counting from one row of a batch to the next."""
    ids = prompt([(1, 1)])
    assert places_of(ids, IMAGE, [(1, 1)])[3, 4:6].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("ids", "grids", "said"),
    [
        (prompt([(2, 3)]), [], "has places for 1 images; 0 are given"),
        (prompt([]), [(2, 3)], "has places for 0 images; 1 are given"),
        (
            prompt([(2, 3)]),
            [(3, 2)],
            r"image 0 has 3 x 2 squares, 11 tokens; the prompt has 10 places for it",
        ),
    ],
)
def test_places_for_other_images_are_refused(ids: list[int], grids: list[tuple[int, int]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        places_of(ids, IMAGE, grids)
