"""The small model's own forward pass beside transformers' class, put right, and beside the graphs that alula writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_decoders import session_of
from training.batches import Plan, prompt_ids
from training.export import card, export
from training.learning import embedded, pixels_of
from training.model import AXES, Past, as_tencent, made, normalised, read, see, step
from training.prompts import PROMPTS

from alula.codecs.places import places_of
from alula.families.hunyuan_text import read_text
from alula.families.hunyuan_vision import read_vision, write_vision
from alula.families.llama import write_decoder
from alula.families.weights import read_weights

WIDTH, HEIGHT = 160, 96


@pytest.fixture(scope="module")
def model() -> Any:
    made_ = made("tiny", 0).eval()
    with torch.no_grad():
        for parameter in made_.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (parameter.ndim == 1) * 0.5)
    return made_


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return normalised(
        torch.randint(0, 256, (1, HEIGHT, WIDTH, 3), generator=torch.Generator().manual_seed(1))
    )


def patches_of(pixels: torch.Tensor) -> torch.Tensor:
    """[down, across, features] of one page, in the order of the image."""
    cut = pixels.unfold(2, 16, 16).unfold(3, 16, 16)
    return cut.permute(0, 2, 3, 1, 4, 5).reshape(HEIGHT // 16, WIDTH // 16, -1)


def asked(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    ids = prompt_ids(PROMPTS["spotting"][1], (WIDTH, HEIGHT))
    places = places_of(ids, model.config.image_token_id, [(HEIGHT // 32, WIDTH // 32)])
    return torch.tensor([ids]), torch.from_numpy(places)[:, None]


@torch.no_grad()
def test_it_computes_what_transformers_class_does_once_that_is_put_right(
    model: Any, pixels: torch.Tensor
) -> None:
    ids, places = asked(model)
    grid = torch.tensor([[1, HEIGHT // 16, WIDTH // 16]])
    ours = read(model, embedded(model, ids, see(model, pixels), model.config.image_token_id), places)

    def theirs(which: Any) -> torch.Tensor:
        flat = patches_of(pixels).flatten(0, 1)
        output = which.model(input_ids=ids, position_ids=places, pixel_values=flat, image_grid_thw=grid)
        return torch.as_tensor(output.last_hidden_state)

    untouched = made("tiny", 0).eval()
    untouched.load_state_dict(model.state_dict())
    assert not torch.allclose(theirs(untouched), ours, atol=1e-2)
    torch.testing.assert_close(theirs(as_tencent(untouched)), ours, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_a_step_gives_what_reading_all_again_gives(model: Any, pixels: torch.Tensor) -> None:
    """Rows of different lengths, each going on at its own place."""
    ids, places = asked(model)
    words = model.model.language_model.embed_tokens
    longer = torch.cat((ids, torch.tensor([[5, 6]])), 1)
    ids, short = torch.cat((ids, torch.tensor([[7, 0]])), 1), ids.shape[1] + 1
    both = torch.cat((longer, ids))
    more = torch.arange(places.shape[2], places.shape[2] + 2).expand(AXES, 1, -1)
    places = torch.cat((places, more), 2).expand(-1, 2, -1)
    seen = see(model, pixels.expand(2, -1, -1, -1))
    x, past = embedded(model, both, seen, model.config.image_token_id), Past()
    read(model, x, places, past)
    room = (0, 0, 0, 4)
    past.keys, past.values = (
        [torch.nn.functional.pad(each, room) for each in kept] for kept in (past.keys, past.values)
    )
    lengths = torch.tensor([short + 1, short])
    token = torch.tensor([[9], [9]])
    found = step(model, words(token), lengths, past)[:, 0]
    for row, length in enumerate(lengths.tolist()):
        whole = torch.cat((x[row : row + 1, :length], words(token[:1])), 1)
        at = torch.cat((places[:, :1, :length], torch.full((AXES, 1, 1), length)), 2)
        torch.testing.assert_close(found[row], read(model, whole, at)[0, -1], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_exported_folder_is_read_by_alula_with_the_same_logits(
    model: Any, pixels: torch.Tensor, tmp_path: Path
) -> None:
    """In the layout that alula takes by default: both graphs beside our forward pass at the stored weights."""
    stored = made("tiny", 0).eval()
    stored.load_state_dict(model.state_dict())
    size = export(stored, tmp_path)
    assert size == (tmp_path / "model.safetensors").stat().st_size
    stored = stored.float()
    ids, places = asked(model)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    weights, settings = read_weights(tmp_path), read_text(config)
    vision = session_of(write_vision(weights, read_vision(config, settings.hidden)))
    [image] = vision.run(None, {"patches": patches_of(pixels).numpy()})
    seen = see(stored, pixels)
    np.testing.assert_allclose(image, seen[0].numpy(), atol=1e-4, rtol=1e-3)
    heads, head = config["text_config"]["num_key_value_heads"], config["text_config"]["head_dim"]
    empty = np.zeros((1, heads, 0, head), np.float32)
    here = ids.numpy() == config["image_token_id"]
    feeds = {
        "image_rows": np.where(here, here.cumsum() - 1, -1),
        "input_ids": ids.numpy(),
        "position_ids": places.numpy(),
        "attention_mask": np.ones((1, ids.shape[1]), np.int64),
        "answers": np.arange(ids.shape[1]),
        "image": image,
        **{f"past.{layer}.{kind}": empty for layer in range(settings.layers) for kind in ("key", "value")},
    }
    [logits, *_] = session_of(write_decoder(weights, settings)).run(None, feeds)
    states = read(stored, embedded(stored, ids, seen, config["image_token_id"]), places)
    wanted = states @ stored.model.language_model.embed_tokens.weight.T
    np.testing.assert_allclose(logits[0], wanted[0].numpy(), atol=2e-3, rtol=2e-3)
    assert (tmp_path / "chat_template.jinja").is_file()


def test_pages_are_coloured_on_the_device_as_they_are_seen(fonts: Path) -> None:
    batch = Plan(seed=1, fonts=fonts, patches=400, rows=2).batch(0, 0.0)
    from training.render import coloured  # noqa: PLC0415 - beside what it is compared with

    page = coloured(batch.levels[0].numpy(), *(tuple(each[0].tolist()) for each in (batch.paper, batch.ink)))
    found = pixels_of(*(each[:1] for each in (batch.levels, batch.paper, batch.ink)))
    torch.testing.assert_close(found, normalised(torch.from_numpy(page)[None]), atol=1e-6, rtol=0)


def test_weights_that_fp16_does_not_hold_are_not_written(tmp_path: Path) -> None:
    broken = made("tiny", 0)
    with torch.no_grad():
        broken.model.language_model.norm.weight[0] = 1e5
    with pytest.raises(ValueError, match="fp16 does not hold"):
        export(broken, tmp_path)


@pytest.mark.parametrize(("rate", "verdict"), [(0.0199, "is reached"), (0.0201, "is **not reached**")])
def test_the_card_has_the_figures_that_were_measured(rate: float, verdict: str) -> None:
    scores = {
        "all": {"cer": rate, "exact": 0.3, "pages": 9},
        "spotting": {
            "cer": 0.2,
            "exact": 0.0,
            "pages": 2,
            "coordinate_off_mean": 22.9,
            "coordinate_off_p95": 84.0,
        },
        "text": {"cer": 0.0123, "exact": 0.5, "pages": 7},
    }
    text = card(scores, 7_358_144, 14_733_928, "17 minutes on a GPU")
    assert "| text | 1.23% | 50% | 7 |" in text
    assert "7.36 million parameters" in text
    assert "17 minutes on a GPU" in text
    assert f"At most 2% of `all` was asked, which {verdict}." in text
    assert "by 23 thousandths" in text
