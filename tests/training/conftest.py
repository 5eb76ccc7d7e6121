"""Fonts for pages that tests draw: the one that Pillow carries, said to be both for Latin and for Chinese."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import ImageFont

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
from training.fonts import Face, write_index  # noqa: E402 - likewise


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Steps of a tiny model take longer to share than to make."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `subset_fonts` leaves it."""
    folder = tmp_path_factory.mktemp("fonts")
    default = ImageFont.load_default(20)
    assert isinstance(default, ImageFont.FreeTypeFont)
    carried = default.path
    assert isinstance(carried, BytesIO)
    files = {}
    for held in (False, True):
        for chinese in (False, True):
            face = Face(
                name=f"{held}-{chinese}", package="Pillow", licence="CC0-1.0", chinese=chinese, held=held
            )
            (folder / f"{face.name}.ttf").write_bytes(carried.getvalue())
            files[f"{face.name}.ttf"] = face
    write_index(folder, files)
    return folder
