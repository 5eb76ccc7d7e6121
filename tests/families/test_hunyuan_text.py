"""HunyuanOCR's language model beside transformers, at random weights: images in a prompt, then steps with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tiny_decoders import session_of

from alula.core.errors import InputError
from alula.families.hunyuan_text import Sections, read_text
from alula.families.hunyuan_vision import read_vision, write_vision
from alula.families.llama import decoder_part, write_decoder
from alula.families.weights import read_weights

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
from transformers import HunYuanVLConfig, HunYuanVLForConditionalGeneration  # noqa: E402 - likewise

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
BEGIN, END, IMAGE = 91, 92, 93
HEADS, SIZE, LAYERS = 2, 16, 2
ROPE = {
    "rope_type": "dynamic",
    "alpha": 1000.0,
    "rope_theta": 10000.0,
    "factor": 1.0,
    "mrope_section": [2] * 4,
}
TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 40,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": HEADS,
    "head_dim": SIZE,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_parameters": ROPE,
}
VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "max_image_size": 64,
    "text_hidden_size": 40,
    "out_hidden_size": 40,
}
CONFIG: dict[str, Any] = {
    "model_type": "hunyuan_vl",
    "text_config": TEXT,
    "vision_config": VISION,
    "image_token_id": IMAGE,
    "image_start_token_id": BEGIN,
    "image_end_token_id": END,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    made = HunYuanVLForConditionalGeneration(HunYuanVLConfig(**CONFIG)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1) * 0.5)
    made.tie_weights()
    folder = tmp_path_factory.mktemp("model")
    made.save_pretrained(folder)
    return made, folder


class Ours:
    """Both graphs, and a cache."""

    def __init__(self, folder: Path, sections: Sections) -> None:
        weights, self.settings = read_weights(folder), read_text(CONFIG, sections=sections)
        vision = read_vision(CONFIG, self.settings.hidden)
        self.vision: onnxruntime.InferenceSession = session_of(
            write_vision(weights, vision, grid="transformers")
        )
        self.decoder = session_of(write_decoder(weights, self.settings))
        self.past = {
            f"past.{index}.{kind}": np.zeros((1, HEADS, 0, SIZE), np.float32)
            for index in range(LAYERS)
            for kind in ("key", "value")
        }
        self.seen = 0

    def step(self, ids: Ints, positions: Ints, images: list[Floats]) -> Floats:
        """Logits of all new tokens."""
        made = [self.vision.run(None, {"patches": each})[0] for each in images]
        self.seen += ids.shape[1]
        kept = ids == IMAGE
        feeds = {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": np.ones((1, self.seen), np.int64),
            "answers": np.arange(ids.shape[1]),
            "image_rows": np.where(kept, kept.cumsum() - 1, -1),
            "image": np.concatenate(made) if made else np.zeros((1, 40), np.float32),
            **self.past,
        }
        logits, *present = self.decoder.run(None, feeds)
        self.past = dict(zip(self.past, present, strict=True))
        return np.asarray(logits[0], np.float32)


def prompt(grids: list[tuple[int, int]]) -> Ints:
    """Text around images, each with as many places as it has tokens."""
    ids = [5, 6]
    for down, across in grids:
        ids += [BEGIN, *[IMAGE] * ((down // 2) * (across // 2 + 1) + 2), END, 7, 8]
    return np.array([[*ids, 9, 10]])


@pytest.mark.parametrize("grids", [[(4, 6)], [(6, 4), (2, 8)], []])
def test_logits_are_those_of_transformers(grids: list[tuple[int, int]], model: tuple[Any, Path]) -> None:
    """vllm-project/vllm#55140: a rotation of four axes was taken for one of three."""
    reference, folder = model
    ids = prompt(grids)
    rng = np.random.default_rng(1)
    images = [rng.standard_normal((*grid, 48)).astype(np.float32) for grid in grids]
    given: dict[str, Any] = {"input_ids": torch.from_numpy(ids)}
    sizes = torch.tensor([[1, *grid] for grid in grids]) if grids else None
    if grids:
        flat = np.concatenate([image.reshape(-1, 48) for image in images])
        given |= {"pixel_values": torch.from_numpy(flat), "image_grid_thw": sizes}
    kinds = torch.from_numpy((ids == IMAGE).astype(np.int32))
    positions, _ = reference.model.get_rope_index(given["input_ids"], kinds, sizes)
    with torch.no_grad():
        wanted = reference(**given, mm_token_type_ids=kinds, position_ids=positions).logits[0].numpy()
    ours = Ours(folder, "transformers")
    found = ours.step(ids, positions.numpy(), images)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    # From then on a token has the same place on every axis.
    for token in (11, 12):
        at = np.full((4, 1, 1), ids.shape[1])
        ids = np.concatenate([ids, [[token]]], axis=1)
        positions = torch.cat([positions, torch.from_numpy(at)], dim=2)
        with torch.no_grad():
            more = {**given, "input_ids": torch.from_numpy(ids)}
            kinds = torch.from_numpy((ids == IMAGE).astype(np.int32))
            wanted = reference(**more, mm_token_type_ids=kinds, position_ids=positions).logits[0, -1:].numpy()
        np.testing.assert_allclose(ours.step(ids[:, -1:], at, []), wanted, atol=1e-4, rtol=1e-4)


def test_the_sections_of_tencent_are_a_rotation_and_differ_in_images_alone(model: tuple[Any, Path]) -> None:
    """Half a head is cut into four, each turned by its axis; text has one place on all of them."""
    _, folder = model
    for grids in ([], [(4, 6)]):
        ids = prompt(grids)
        rng = np.random.default_rng(1)
        images = [rng.standard_normal((*grid, 48)).astype(np.float32) for grid in grids]
        places = np.tile(np.arange(ids.shape[1]), (4, 1, 1))
        if grids:
            places[1:, 0, 4:10] = np.arange(6)
        theirs, ours = (
            Ours(folder, sections).step(ids, places, images) for sections in ("transformers", "tencent")
        )
        assert np.allclose(theirs, ours, atol=1e-5) == (not grids)


def test_both_spellings_of_a_config_say_the_same() -> None:
    flat = {
        **{key: value for key, value in TEXT.items() if key not in {"rope_parameters", "head_dim"}},
        "model_type": "hunyuan_vl",
        "image_token_id": IMAGE,
        "attention_head_dim": SIZE,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [0.25] * 4},
    }
    assert read_text(flat) == read_text(CONFIG)
    assert read_text(CONFIG).sections == (2, 2, 2, 2)
    names = [spec.name for spec in decoder_part(read_text(CONFIG)).inputs[:6]]
    assert names == ["input_ids", "position_ids", "attention_mask", "answers", "image_rows", "image"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected 'hunyuan_vl'"),
        ({"image_token_id": None}, "image_token_id"),
        (
            {"text_config": {**TEXT, "rope_parameters": {**ROPE, "mrope_section": [4, 4]}}},
            r"mrope_section is \[4, 4\]",
        ),
        (
            {"text_config": {**TEXT, "rope_parameters": {**ROPE, "mrope_section": [8, 0, 0, 0]}}},
            "make 8 together",
        ),
    ],
)
def test_what_the_graph_would_not_honour_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_text({**CONFIG, **change})
