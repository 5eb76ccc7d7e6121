"""Checkpoints that come with the package are found by their names, and say so where they are not whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import alula
from alula.core.errors import InputError
from alula.families import SHIPPED, describe, open_checkpoint, shipped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_BYTES = 15_000_000


@pytest.mark.parametrize("name", SHIPPED)
def test_a_name_is_a_whole_checkpoint_with_its_card_and_within_its_size(name: str) -> None:
    checkpoint = open_checkpoint(name)
    assert (checkpoint.name, checkpoint.revision) == (name, "local")
    assert describe(checkpoint).sees
    assert (checkpoint.root / "model.safetensors").stat().st_size <= MOST_BYTES
    assert describe(checkpoint).taught == ("document", "text", "spotting", "table", "fields")
    card = (checkpoint.root / "README.md").read_text("utf-8")
    assert "## What it reads" in card
    assert "## What it does not read" in card


def test_all_of_it_goes_into_a_wheel() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    package = Path(alula.__file__).parent
    packed = {
        file
        for pattern in settings["tool"]["setuptools"]["package-data"]["alula"]
        for file in package.glob(pattern)
    }
    whole = {file for name in SHIPPED for file in (shipped.FOLDER / name).iterdir()}
    assert whole
    assert whole <= packed


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SHIPPED[0]).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_checkpoint(SHIPPED[0])


def test_what_ships_has_no_revisions_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="ships with alula and has no revision 'v2'"):
        open_checkpoint(SHIPPED[0], "v2")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors is not there: install alula again"):
        open_checkpoint(SHIPPED[0])
