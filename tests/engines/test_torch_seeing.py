"""What HunyuanOCR is held to, loaded from files that say the same in other words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_hunyuan
from gpu_bench.ocr_model import spec_of

from alula.core.errors import EngineError, InputError
from alula.core.model import ModelSpec
from alula.engines.torch_seeing import seer
from alula.families import open_checkpoint

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hunyuan") / "transformers"
    tiny_hunyuan.checkpoint(made)
    return made


@pytest.fixture
def tencents(folder: Path, tmp_path: Path) -> Path:
    """Its sections of a head are shares of its pairs, and each is a quarter."""
    tiny_hunyuan.spelled_as_tencent(folder, tmp_path / "tencent")
    return tmp_path / "tencent"


def spec(folder: Path) -> ModelSpec:
    found: ModelSpec = spec_of(open_checkpoint(str(folder)))
    return found


def changed(folder: Path, **keys: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **keys}), "utf-8")


def test_sections_that_are_shares_are_what_transformers_counts(folder: Path, tencents: Path) -> None:
    tokens = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    one, other = (seer(each, spec(folder), threads=1).read(tokens) for each in (folder, tencents))
    np.testing.assert_array_equal(one, other)


def test_a_weight_of_another_size_is_refused_by_name(folder: Path, tencents: Path) -> None:
    changed(tencents, intermediate_size=48)
    with pytest.raises(
        InputError, match=r"mlp\.\w+_proj\.weight is [\d x]+, its config.json calls for [\d x]+$"
    ):
        seer(tencents, spec(folder), threads=1)


def test_a_key_that_transformers_does_not_take_is_named_in_one_line(folder: Path, tencents: Path) -> None:
    changed(tencents, rms_norm_eps=None)
    with pytest.raises(EngineError, match=r"transformers cannot load .*rms_norm_eps.* expected float"):
        seer(tencents, spec(folder), threads=1)
