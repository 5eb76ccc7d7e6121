"""Classifiers of images built for a range of sizes: every precision held to PyTorch within it, refused beyond it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import photos
import pytest
import tiny_images

from alula.build import BuildRequest, Built, build
from alula.cli.images import answers_of
from alula.core.errors import InputError, ShapeError
from alula.core.profile import Profile, Range
from alula.core.progress import Silent
from alula.engines import backend
from alula.planning import Wanted, asked_of

AXES = {"batch": Range(1, 2, 4), "height": Range(24, 40, 48), "width": Range(32, 40, 72)}


def checkpoint(to: Path, model_type: str, height: int = 40, width: int = 56) -> Path:
    folder = tiny_images.image_checkpoint(to, model_type)
    told = {"image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}}
    (folder / "preprocessor_config.json").write_text(json.dumps({**told, **photos.HALVES}))
    return folder


def built(model: Path, to: Path, **choices: Any) -> Built:
    request = BuildRequest(model=str(model), to=to, **{"axes": AXES, "use_cache": False, **choices})
    return build(request, Silent())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for seed in range(6):
        photos.noise(40 + 3 * seed, 50, seed=seed).save(folder / f"{seed}.png")
    return folder


@pytest.mark.parametrize(
    ("model_type", "target", "precision"),
    [
        ("vit", "openvino", "fp32,bf16,int8"),
        ("dinov2", "onnxruntime", "fp32,fp16,int8"),
        ("efficientnet", "onnxruntime", "fp32,int8"),
    ],
)
def test_every_precision_is_held_to_pytorch_over_the_range(
    model_type: str, target: str, precision: str, rows: Path, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "model", model_type)
    bundle = built(folder, tmp_path / "out", target=target, precision=precision, data=rows, budget=1.0).bundle
    assert bundle.verified
    assert [rung.passed for rung in bundle.manifest.rungs] == [True] * len(precision.split(","))
    assert {check.reference for rung in bundle.manifest.rungs for check in rung.checks} >= {"pytorch"}
    assert bundle.model.part("encoder").axes == ("batch", "height", "width")
    asked = {feeds["pixel_values"].shape[2:] for feeds in bundle.stored.feeds}
    assert asked >= {(24, 32), (40, 40), (48, 72), (48, 32), (24, 72)}

    file = tmp_path / "photo.png"
    photos.noise(90, 70).save(file)
    answers = answers_of(bundle, [file])
    assert len(answers) == 5
    assert sum(answer["score"] for answer in answers) == pytest.approx(1)

    engine = bundle.engine("encoder")
    session = backend(engine.backend).open(engine)
    with pytest.raises(ShapeError, match=r"axis 'height' is 56; built for 24..48"):
        session.run({"pixel_values": np.zeros((1, 3, 56, 32), np.float32)})
    session.close()


@pytest.mark.parametrize("fixed", [{}, {"width": Range(56, 56, 56)}, {"height": Range(40, 40, 40)}])
def test_one_side_may_be_fixed(fixed: dict[str, Range], tmp_path: Path) -> None:
    """OpenVINO folds what belongs to it to constants, and failed on products with them in another order."""
    folder = checkpoint(tmp_path / "model", "vit")
    sides = ("height", "width") if fixed else ("height",)
    axes = {axis: fixed.get(axis, AXES[axis]) for axis in ("batch", *sides)}
    for target in ("openvino", "onnxruntime"):
        bundle = built(folder, tmp_path / target, axes=axes, target=target, precision="fp32").bundle
        assert bundle.verified
        assert bundle.model.part("encoder").axes == ("batch", *sides)


def test_a_processor_outside_the_range_is_refused_before_any_engine_is_made(
    rows: Path, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "model", "resnet", height=64)
    text = (
        r"preprocessor_config.json gives images with a height of 64; model is built for 24 to 48: "
        r"build with --height MIN:OPT:MAX around 64, or change the size in that file"
    )
    with pytest.raises(InputError, match=text):
        built(folder, tmp_path / "out", target="onnxruntime", precision="int8", data=rows)
    bundle = built(folder, tmp_path / "out", target="onnxruntime", precision="fp32").bundle
    assert bundle.verified
    with pytest.raises(InputError, match=text):
        answers_of(bundle, [])


def test_without_sizes_the_processors_own_is_the_only_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", "resnet")
    bundle = built(folder, tmp_path / "out", axes={"batch": Range(1, 1, 2)}, precision="fp32").bundle
    assert bundle.model.part("encoder").inputs[0].shape == ("batch", 3, 40, 56)
    assert set(bundle.engine("encoder").plan.profile.axes) == {"batch"}


def test_sizes_are_asked_for_by_any_profile() -> None:
    tall, flat = {"height": Range(32, 32, 40)}, {"height": Range(8, 16, 32), "width": Range(64, 64, 64)}
    assert asked_of({}, Wanted()) == {}
    assert asked_of({"batch": Range(1, 2, 3)}, Wanted(profiles=(tall, flat))) == {
        "batch": Range(1, 2, 3),
        "height": Range(8, 32, 40),
        "width": Range(64, 64, 64),
    }
    assert Profile(asked_of(flat, Wanted())) == Profile(flat)
