"""ONNX files by the task they are named for: classifiers with their labels, detectors of text, recognisers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import packaged
import pytest
import tiny_onnx
from tiny_onnx import node, numbers, value

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import describe, open_checkpoint, write
from alula.families.onnx_values import labels_of, read_labels_file

SHAPE = ("n", 3, 32, 32)
PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": 32}


def classifier(
    shape: Sequence[int | str] = SHAPE, last: str = "Softmax", classes: int | str = 4
) -> onnx.ModelProto:
    """Means of colours to scores."""
    axes = [1, 2] if shape[-1] == 3 else [2, 3]
    nodes = [
        node("ReduceMean", "x", "means", axes=axes, keepdims=0),
        node("MatMul", "means matrix", "scores"),
        node(last, "scores", "given"),
    ]
    outputs = [value("given", ["n", classes])]
    return tiny_onnx.model_of(nodes, [value("x", list(shape))], outputs, {"matrix": numbers(3, 4)})


def detector(last: str = "Sigmoid", *shape: int | str) -> onnx.ModelProto:
    nodes = [node("Conv", "x kernel", "found", kernel_shape=[1, 1]), node(last, "found", "given")]
    outputs = [value("given", list(shape or ("n", 1, "h", "w")))]
    return tiny_onnx.model_of(
        nodes, [value("x", ["n", 3, "h", "w"])], outputs, {"kernel": numbers(1, 3, 1, 1)}
    )


def file_of(
    folder: Path, model: onnx.ModelProto, metadata: Mapping[str, str] | None = None, **processor: Any
) -> Path:
    onnx.helper.set_model_props(model, dict(metadata or {}))
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **processor}))
    return tiny_onnx.saved(model, folder / "model.onnx")


def told(file: Path, task: str, **given: Any) -> ModelSpec:
    return describe(open_checkpoint(str(file)), task, **given)


FOUR = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "metadata",
    [
        {"character": "a\nb\nc\nd"},
        {"character": "a\r\nb\r\nc\r\nd\n"},
        {"names": "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}"},
        {"labels": '["a", "b", "c", "d"]'},
        {"id2label": '{"3": "d", "0": "a", "1": "b", "2": "c"}'},
        {"classes": "{'a': 0, 'b': 1, 'd': 3, 'c': 2}"},
    ],
)
@pytest.mark.parametrize("task", ["classification", "image-classification"])
def test_a_classifier_has_the_labels_of_its_metadata(
    tmp_path: Path, metadata: dict[str, str], task: str
) -> None:
    spec = told(file_of(tmp_path, classifier(), metadata), task)
    assert (spec.task, spec.labels, spec.activation) == ("image-classification", FOUR, "none")
    (taken,), (given,) = spec.parts[0].inputs, spec.parts[0].outputs
    assert (taken.name, taken.shape) == ("x", ("batch", 3, 32, 32))
    assert (given.name, given.shape) == ("logits", ("batch", 4))


def test_labels_that_are_given_come_before_those_of_the_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, classifier(last="Identity", classes="m"), {"character": "no"})
    (tmp_path / "mine.txt").write_text("a\nb\nc\nd\n")
    spec = told(file, "classification", listed=tmp_path / "mine.txt")
    # A file that ends in no softmax gives logits.
    assert (spec.labels, spec.activation) == (FOUR, "softmax")
    (tmp_path / "mine.json").write_text(json.dumps(FOUR))
    assert told(file, "classification", listed=tmp_path / "mine.json").labels == FOUR


@pytest.mark.parametrize("shape", [("n", 32, 32, 3), ("n", "h", "w", 3), ("n", 3, "h", "w")])
def test_sides_are_those_of_the_image_processor_and_colours_may_come_last(
    tmp_path: Path, shape: tuple[int | str, ...]
) -> None:
    file = file_of(tmp_path, classifier(shape), {"labels": json.dumps(FOUR)})
    expected = ("batch", 3, 32, 32) if shape[1] == 3 else ("batch", 32, 32, 3)
    spec = told(file, "classification")
    assert spec.parts[0].inputs[0].shape == expected
    written = write(open_checkpoint(str(file)), spec, "encoder")
    assert tuple(map(str, written.graph.inputs[0].shape or ())) == tuple(map(str, expected))


@pytest.mark.parametrize("task", ["detection", "text-detection"])
def test_a_detector_gives_a_probability_for_each_pixel(tmp_path: Path, task: str) -> None:
    spec = told(file_of(tmp_path, detector()), task)
    (taken,), (given,) = spec.parts[0].inputs, spec.parts[0].outputs
    assert (spec.task, taken.shape) == ("text-detection", ("batch", 3, "height", "width"))
    assert (given.name, given.shape, given.range) == (
        *("probabilities", ("batch", 1, "height", "width")),
        (0.0, 1.0),
    )


def test_pp_ocr_v6_is_known_by_its_tasks() -> None:
    spec = told(packaged.detector(), "detection")
    assert spec.parts[0].inputs[0].shape == ("batch", 3, "height", "width")
    spec = told(packaged.newest_recogniser(), "recognition")
    assert spec == describe(open_checkpoint(str(packaged.newest_recogniser())))
    assert (len(spec.labels), spec.labels[0], spec.labels[-1]) == (18_710, "", " ")
    assert told(packaged.detector(), "generic").task == "tensors"


def test_a_recognisers_characters_may_be_listed_beside_it(tmp_path: Path) -> None:
    model = onnx.load(packaged.recogniser())
    listed = {each.key: each.value for each in model.metadata_props}["character"]
    del model.metadata_props[:]
    file = tiny_onnx.saved(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match="there is no metadata 'character'"):
        told(file, "recognition")
    (tmp_path / "keys.txt").write_text(listed, "utf-8")
    spec = told(file, "recognition", listed=tmp_path / "keys.txt")
    assert spec.labels == describe(open_checkpoint(str(packaged.recogniser()))).labels


@pytest.mark.parametrize(
    ("model", "task", "text"),
    [
        (
            classifier(),
            "classification",
            "names no labels: there is no metadata .*--labels FILE, one a line, 4 in",
        ),
        (classifier((1, 3, 32, 32)), "classification", "its batch is fixed at 1"),
        (classifier(("n", 3, 30, 32)), "classification", "gives images with a height of 32; .* takes 30"),
        (detector(), "classification", "the output is no row of scores for each image"),
        (classifier(("n", 4, 32, 32)), "classification", "the input is no batch of images in three colours"),
        (tiny_onnx.token_net(), "classification", "there are 3 inputs and 2 outputs"),
        (detector("Relu"), "detection", "the output is no probability"),
        (detector("Sigmoid", "n", 2, "h", "w"), "detection", "the output is no map as large as the image"),
        (classifier(), "detection", "the output is no map as large as the image"),
        (classifier(), "recognition", "there is no metadata 'character'"),
    ],
)
def test_what_a_task_does_not_fit_is_refused_with_what_the_file_has(
    tmp_path: Path, model: onnx.ModelProto, task: str, text: str
) -> None:
    with pytest.raises(InputError, match=text):
        told(file_of(tmp_path, model), task)


def layout() -> onnx.ModelProto:
    """Scores and distances of places, two of each, as a detector of layout gives them before boxes are made."""
    nodes, outputs, weights = [node("Flatten", "image", "row")], [], {"places": numbers(3 * 8 * 8, 20)}
    nodes.append(node("MatMul", "row places", "wide"))
    for name, columns in (("scores_8", 10), ("scores_16", 10), ("boxes_8", 4), ("boxes_16", 4)):
        weights[f"{name}_of"] = numbers(20, columns)
        nodes.append(node("MatMul", f"wide {name}_of", name))
        outputs.append(value(name, [1, columns]))
    return tiny_onnx.model_of(nodes, [value("image", [1, 3, 8, 8])], outputs, weights)


def test_a_detector_of_objects_is_refused_with_its_outputs_and_what_to_do_instead(tmp_path: Path) -> None:
    for model, said in (
        (layout(), r"1 inputs and 4 outputs .*scores_8 FLOAT \[1,10\], .*boxes_16 FLOAT \[1,4\]"),
        (classifier(("n", 3, 32, 32)), r"outputs given FLOAT \[n,4\]"),
    ):
        instead = "detectors of objects, .* --task generic, ask with alula run BUNDLE --feeds"
        with pytest.raises(InputError, match=f"{said}.*{instead}"):
            told(file_of(tmp_path, model), "detection")
    with pytest.raises(InputError, match="the output is no probability") as refused:
        told(file_of(tmp_path, detector("Relu")), "detection")
    assert "detectors of objects" not in str(refused.value)


def test_labels_of_another_number_and_where_there_are_none_are_refused(tmp_path: Path) -> None:
    file, listed = file_of(tmp_path, classifier(), {"labels": '["a", "b"]'}), tmp_path / "three.txt"
    listed.write_text("a\nb\nc")
    with pytest.raises(InputError, match="gives 4 classes, and its metadata has 2 labels"):
        told(file, "classification")
    with pytest.raises(InputError, match="gives 4 classes, and --labels has 3 labels"):
        told(file, "classification", listed=listed)
    for task in ("generic", "detection"):
        with pytest.raises(InputError, match=r"--labels .*: task (tensors|text-detection) has none"):
            told(file, task, listed=listed)


def test_files_of_labels_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for name, content, text in (
        ("empty.txt", b"", "holds no labels"),
        ("binary.txt", b"\xff\xfe", "cannot be read"),
        ("object.json", b'{"a": [1]}', "holds no labels"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=text):
            read_labels_file(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_labels_file(tmp_path / "none.txt")


def test_metadata_that_names_nothing_is_no_list_of_labels() -> None:
    assert labels_of({"stride": "32"}) == ()
    assert labels_of({"names": ""}) == ()
    # Ids that are not counted from nought say nothing of an order.
    assert labels_of({"names": "{1: 'a', 2: 'b'}"}) == ()


def test_a_classifier_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    file = tiny_onnx.saved(classifier(), tmp_path / "model.onnx")
    with pytest.raises(InputError, match=r"has no preprocessor_config.json, without which nobody knows"):
        told(file, "classification")
