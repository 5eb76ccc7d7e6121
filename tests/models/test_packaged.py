"""The converted models are the packaged ones: transformers loads them whole, and they do what they were made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import packaged
import photos
import pytest

from alula.codecs import decode

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
ort = pytest.importorskip("onnxruntime")

PERSONAL = (
    "My name is Sarah Connor, email sarah.connor@example.com, phone 415-555-0132, "
    "I live at 42 Elm Street, Boston, MA 02118."
)
MISTAKES = "I has went to the store yesterday and buyed there book ."


def load(folder: Path) -> tuple[Any, Any]:
    model, report = transformers.AutoModelForTokenClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert {key: list(value) for key, value in report.items()} == {
        "missing_keys": [],
        "unexpected_keys": [],
        "mismatched_keys": [],
        "error_msgs": [],
    }
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def logits_of(folder: Path, text: str) -> tuple[Any, dict[str, Any], list[tuple[str, str]]]:
    """The logits of a text, its tokenised form, and the label of each token."""
    model, tokenizer = load(folder)
    batch = dict(tokenizer(text, return_tensors="pt"))
    with torch.no_grad():
        logits = model(**batch).logits[0].numpy()
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    labels = [model.config.id2label[int(best)] for best in logits.argmax(-1)]
    return logits, batch, list(zip(tokens, labels, strict=True))


def packaged_logits(path: Path, batch: dict[str, Any]) -> Any:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, {name: batch[name].numpy() for name in names})[0][0]


def test_rampart_finds_personal_data(rampart_folder: Path) -> None:
    _, _, found = logits_of(rampart_folder, PERSONAL)
    expected = [("sarah", "B-GIVEN_NAME"), ("connor", "B-SURNAME"), ("415", "B-PHONE"), ("boston", "B-CITY")]
    assert set(expected) <= set(found)
    assert ("my", "O") in found


def test_rampart_equals_its_four_bit_graph(rampart_folder: Path) -> None:
    logits, batch, _ = logits_of(rampart_folder, PERSONAL)
    path = packaged.package(packaged.RAMPART) / "models" / "rampart" / "onnx" / "model_q4.onnx"
    assert np.abs(logits - packaged_logits(path, batch)).max() < 1e-4


def test_quire_corrects_grammar(quire_folder: Path) -> None:
    _, _, found = logits_of(quire_folder, MISTAKES)
    assert [(token, tag) for token, tag in found if tag != "$KEEP"] == [
        ("has", "$REPLACE_have"),
        ("went", "$REPLACE_gone"),
        ("buy", "$REPLACE_bought"),
        ("there", "$REPLACE_their"),
    ]


def test_quire_is_near_its_eight_bit_graph_which_rounds_activations_too(quire_folder: Path) -> None:
    logits, batch, _ = logits_of(quire_folder, MISTAKES)
    given = packaged_logits(packaged.package(packaged.QUIRE) / "tagger.onnx", batch)
    cosine = (logits * given).sum() / np.linalg.norm(logits) / np.linalg.norm(given)
    assert cosine > 0.95
    assert (logits.argmax(-1) == given.argmax(-1)).mean() > 0.9


def test_minilm_is_a_huggingface_folder_as_it_is(minilm_folder: Path) -> None:
    assert json.loads((minilm_folder / "config.json").read_text())["model_type"] == "bert"
    assert (minilm_folder / "model.safetensors").stat().st_size > 90_000_000


def image_logits(folder: Path, pixels: Any) -> Any:
    model, report = transformers.AutoModelForImageClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values())
    with torch.no_grad():
        return model.eval()(pixel_values=torch.from_numpy(pixels)).logits.numpy()


def image_pixels(folder: Path, files: list[Path]) -> Any:
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return np.asarray(processor([decode(file) for file in files])["pixel_values"], dtype=np.float32)


def test_the_same_crops_of_photographs_every_time(tmp_path: Path) -> None:
    first, again = (photos.photographs(tmp_path / name, 12) for name in ("first", "again"))
    files = sorted(first.iterdir())
    assert [file.read_bytes() for file in files] == [file.read_bytes() for file in sorted(again.iterdir())]
    assert [file.name for file in files[:2]] == ["000-astronaut.jpg", "001-chelsea.jpg"]
    assert files[0].read_bytes() != files[10].read_bytes()
    assert len({decode(file).size for file in files}) == len(files)


def test_efficientnet_knows_what_is_in_a_photograph(efficientnet_folder: Path, tmp_path: Path) -> None:
    files = sorted(photos.photographs(tmp_path / "photographs", 6).iterdir())
    best = image_logits(efficientnet_folder, image_pixels(efficientnet_folder, files)).argmax(1)
    # ImageNet's numbers: the cats, espresso, the motor scooter and the tripod.
    assert best[1] in {281, 282, 285}
    assert (best[2], best[4], best[5]) == (967, 665, 872)


def test_open_nsfw_is_the_packaged_model_but_for_the_edges_of_its_pooling(
    open_nsfw_folder: Path, tmp_path: Path
) -> None:
    """As packaged, the windows of the only max pooling start a place later: up to 0.07 in ten probabilities."""
    files = sorted(photos.photographs(tmp_path / "photographs", 10).iterdir())
    pixels = image_pixels(open_nsfw_folder, files)
    model = onnx.load(packaged.package(packaged.OPEN_NSFW) / "open-nsfw.onnx")
    (pooling,) = (node for node in model.graph.node if node.op_type == "MaxPool")
    (pads,) = (attribute for attribute in pooling.attribute if attribute.name == "pads")
    assert list(pads.ints) == [0, 0, 1, 1]
    pads.ints[:] = [1, 1, 1, 1]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    # It takes one image, blue first and colours last.
    given = np.ascontiguousarray(pixels[:, ::-1].transpose(0, 2, 3, 1))
    expected = np.concatenate([session.run(None, {"input:0": one[None]})[0] for one in given])
    assert expected[:, 1].max() > 0.1
    assert np.abs(softmax(image_logits(open_nsfw_folder, pixels)) - expected).max() < 1e-4


def softmax(logits: Any) -> Any:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
