from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import packaged
import pytest
from numpy.typing import NDArray

from alula import families
from alula.codecs.recognition import Line, RecognitionCodec
from alula.core.errors import InputError, RunError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Dim, TensorSpec
from alula.engines.onnxruntime import options
from alula.verify.characters import edits, error_rate

pillow = pytest.importorskip("PIL.Image")
from lines import lines  # noqa: E402 - it draws with Pillow

LABELS = ("", "a", "b", " ")


def spec_of(*shape: Dim) -> ModelSpec:
    pixels = TensorSpec(name="x", dtype="float32", shape=shape or ("batch", 3, 48, "width"))
    steps = TensorSpec(name="probabilities", dtype="float32", shape=("batch", "steps", len(LABELS)))
    return ModelSpec(
        name="reader",
        digest="0" * 64,
        revision="local",
        architecture="ONNX",
        family="onnx",
        task="text-recognition",
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(steps,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=LABELS,
    )


CODEC = RecognitionCodec(spec_of())


def png(width: int, height: int, colour: tuple[int, int, int] = (255, 0, 51)) -> bytes:
    file = BytesIO()
    pillow.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def steps(*best: int) -> NDArray[np.float32]:
    made = np.full((len(best), len(LABELS)), 0.1, np.float32)
    made[np.arange(len(best)), best] = 0.7
    return made


def test_a_line_is_blue_green_and_red_from_minus_one_to_one() -> None:
    pixels = CODEC.encode(png(100, 24))
    assert pixels.shape == (3, 48, 200)
    assert pixels.dtype == np.float32
    assert pixels[:, 20, 100].tolist() == pytest.approx([-0.6, -1, 1])
    assert np.ptp(pixels, axis=(1, 2)).max() == 0


@pytest.mark.parametrize(
    ("size", "width"), [((100, 48), 100), ((101, 47), 104), ((1, 48), 1), ((1, 4000), 1), ((9000, 48), 3200)]
)
def test_the_width_keeps_the_proportion_up_to_the_widest(size: tuple[int, int], width: int) -> None:
    assert CODEC.encode(png(*size)).shape == (3, 48, width)


def test_pixels_are_taken_between_their_nearest_and_not_smoothed(tmp_path: Path) -> None:
    stripes = np.zeros((96, 192, 3), np.uint8)
    stripes[:, ::4] = 255
    file = tmp_path / "stripes.png"
    pillow.fromarray(stripes).save(file)
    levels = (CODEC.encode(file)[0, 10] / 2 + 0.5) * 255
    # Two to one: each pixel is the mean of two, white and black or both black.
    assert levels[:4].round().tolist() == pytest.approx([128, 0, 128, 0], abs=1)


def test_a_picture_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="scan 7 cannot be decoded: it is none of BMP"):
        CODEC.encode(b"no picture", "scan 7")


def test_a_batch_is_as_wide_as_a_multiple_of_32_that_holds_its_widest_line() -> None:
    narrow, wide = CODEC.encode(png(20, 48)), CODEC.encode(png(70, 48))
    batch = CODEC.collate([narrow, wide])["x"]
    assert batch.shape == (2, 3, 48, 96)
    assert np.array_equal(batch[0, :, :, :20], narrow)
    assert not batch[0, :, :, 20:].any()
    assert np.array_equal(batch[1, :, :, :70], wide)


def test_a_batch_stays_within_the_profile() -> None:
    line = CODEC.encode(png(70, 48))
    wide = Profile({"batch": Range(3, 3, 4), "width": Range(128, 128, 640)})
    batch = CODEC.collate([line], wide)["x"]
    assert batch.shape == (3, 3, 48, 128)
    assert np.array_equal(batch[0], batch[2])
    odd = Profile({"batch": Range(1, 1, 4), "width": Range(32, 64, 75)})
    assert CODEC.collate([line], odd)["x"].shape == (1, 3, 48, 75)
    with pytest.raises(InputError, match="a line is 70 pixels wide; expected at most 64"):
        CODEC.collate([line], Profile({"batch": Range(1, 1, 1), "width": Range(32, 64, 64)}))
    with pytest.raises(InputError, match="no lines to make a batch of"):
        CODEC.collate([])


def test_repeats_count_once_and_the_score_is_of_what_is_read() -> None:
    assert CODEC.text(steps(0, 1, 1, 0, 1, 2, 2, 3)) == "aab "
    unsure = steps(1, 0, 2)
    unsure[1] = (1.0, 0, 0, 0)
    unsure[2, 2] = 0.5
    read = CODEC.read(unsure)
    assert read.text == "ab"
    assert read.score == pytest.approx(0.6)
    assert CODEC.read(steps(0, 0)) == Line(text="", score=0.0)


def test_probabilities_of_another_model_or_none_are_no_text() -> None:
    with pytest.raises(InputError, match=r"probabilities are \(2, 3\), expected \(steps, 4\)"):
        CODEC.text(steps(1, 2)[:, :3])
    with pytest.raises(RunError, match="the model gave NaN for 'probabilities'"):
        CODEC.text(steps(1, 2) * np.float32(np.nan))


def test_a_model_that_takes_no_lines_is_refused() -> None:
    with pytest.raises(InputError, match=r"reader takes .*, expected lines"):
        RecognitionCodec(spec_of("batch", 3, "height", "width"))


def test_the_real_recogniser_reads_drawn_lines(tmp_path: Path) -> None:
    """300 lines of another seed: 0.06 % of 3205 characters are wrong."""
    ort = pytest.importorskip("onnxruntime")
    file = packaged.recogniser()
    codec = RecognitionCodec(families.describe(families.open_checkpoint(str(file))))
    session = ort.InferenceSession(file, options(threads=2))
    drawn = sorted(
        ((codec.encode(path), text) for path, text in lines(tmp_path, 24, seed=1)),
        key=lambda row: row[0].shape[2],
    )
    read = []
    for start in range(0, len(drawn), 6):
        batch = codec.collate([pixels for pixels, _ in drawn[start : start + 6]])
        read += [codec.text(row) for row in session.run(None, dict(batch))[0]]
    assert error_rate(edits([text for _, text in drawn], read)) < 0.01


def test_drawn_lines_are_the_same_for_a_seed_and_lie_in_an_image_folder(tmp_path: Path) -> None:
    first, again, other = (lines(tmp_path / str(at), 9, seed) for at, seed in enumerate((3, 3, 4)))
    assert [path.read_bytes() for path, _ in first] == [path.read_bytes() for path, _ in again]
    assert [text for _, text in first] != [text for _, text in other]
    table = (tmp_path / "0" / "metadata.csv").read_text("utf-8").splitlines()
    assert table[0] == "file_name,text"
    assert len(table) == 10
    assert all(path.name in row for (path, _), row in zip(first, table[1:], strict=True))
