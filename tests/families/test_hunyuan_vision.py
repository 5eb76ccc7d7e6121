"""HunyuanOCR's vision part beside transformers, at random weights: grids of many shapes, both spellings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_decoders import session_of

from alula.core.errors import InputError
from alula.families.hunyuan_vision import HunyuanVision, read_vision, vision_part, write_vision
from alula.families.weights import read_weights

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.hunyuan_vl")
from safetensors.torch import save_file  # noqa: E402 - likewise
from transformers.models.hunyuan_vl.configuration_hunyuan_vl import HunYuanVLVisionConfig  # noqa: E402
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLVisionTransformer  # noqa: E402

Floats = NDArray[np.float32]
GRIDS = [(32, 32), (40, 40), (12, 98), (98, 12), (2, 2), (128, 4)]
CONFIG: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "max_image_size": 128,
    "text_hidden_size": 40,
}
SPELLED = {
    "layer_norm1": "input_layernorm",
    "layer_norm2": "post_attention_layernorm",
    "mlp.fc1": "mlp.dense_h_to_4h",
    "mlp.fc2": "mlp.dense_4h_to_h",
    "patch_merger.proj_conv": "perceive.proj.0",
    "patch_merger.proj_out": "perceive.proj.2",
    "patch_merger.": "perceive.",
}


def spelled(name: str) -> str:
    """A name of transformers as Tencent's files have it."""
    for theirs, other in SPELLED.items():
        name = name.replace(theirs, other)
    return f"vit.{name}"


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.manual_seed(0)
    model = HunYuanVLVisionTransformer(HunYuanVLVisionConfig(**CONFIG)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1) * 0.5)
    return model


@pytest.fixture(scope="module")
def settings() -> HunyuanVision:
    return read_vision({"vision_config": CONFIG}, CONFIG["text_hidden_size"])


def checkpoint(reference: Any, to: Path, *, tencent: bool) -> Path:
    named = {
        spelled(name) if tencent else f"model.vision_tower.{name}": tensor.contiguous()
        for name, tensor in reference.state_dict().items()
    }
    to.mkdir(exist_ok=True)
    save_file(named, to / "model.safetensors", metadata={"format": "pt"})
    return to


def patches(down: int, across: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((down, across, 48)).astype(np.float32)


@pytest.mark.parametrize("tencent", [True, False])
def test_an_image_has_the_embeddings_that_transformers_gives(
    tencent: bool, reference: Any, settings: HunyuanVision, tmp_path: Path
) -> None:
    weights = read_weights(checkpoint(reference, tmp_path / "model", tencent=tencent))
    session = session_of(write_vision(weights, settings, grid="transformers"))
    for down, across in GRIDS:
        given = patches(down, across)
        flat = torch.from_numpy(given.reshape(down * across, -1))
        with torch.no_grad():
            wanted = reference(flat, torch.tensor([[1, down, across]])).pooler_output[0].numpy()
        [found] = session.run(None, {"patches": given})
        assert found.shape == ((down // 2) * (across // 2 + 1) + 2, 40)
        np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4, err_msg=f"{down} x {across}")


def test_tencents_positions_are_spread_by_a_tenth_of_a_patch_more(
    reference: Any, settings: HunyuanVision, tmp_path: Path
) -> None:
    """As its inference code scales; PyTorch copies a square of the very size that was learned."""
    model = checkpoint(reference, tmp_path / "model", tencent=True)
    table = reference.embeddings.position_embedding.weight.detach()[1:].reshape(1, 32, 32, 48)
    with torch.no_grad():
        for down, across in [(12, 98), (32, 32), (30, 8)]:
            scaled = torch.nn.functional.interpolate(
                table.permute(0, 3, 1, 2),
                scale_factor=((down + 0.1) / 32, (across + 0.1) / 32),
                mode="bilinear",
                align_corners=False,
            )
            graph = write_vision(read_weights(model), settings)
            [node] = [each for each in graph.graph if each.name == "embeddings.position_embedding/MatMul.1"]
            graph.graph.outputs[0] = node.outputs[0]
            wanted = scaled[0].permute(1, 2, 0).numpy()
            [found] = session_of(graph).run(None, {"patches": patches(down, across)})
            np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("tencent", [True, False])
def test_fewer_layers_than_the_weights_have_are_refused(
    tencent: bool, reference: Any, settings: HunyuanVision, tmp_path: Path
) -> None:
    weights = read_weights(checkpoint(reference, tmp_path / "model", tencent=tencent))
    with pytest.raises(InputError, match=r"layers.\*, .* for 1 \(num_hidden_layers of vision_config\)"):
        write_vision(weights, replace(settings, layers=1))


def test_what_the_graph_would_not_honour_is_refused(settings: HunyuanVision) -> None:
    for key, value in {"hidden_act": "silu", "spatial_merge_size": 3, "temporal_patch_size": 2}.items():
        with pytest.raises(InputError, match=rf"vision_config\.{key} is {value!r}, expected"):
            read_vision({"vision_config": {**CONFIG, key: value}}, 40)
    with pytest.raises(InputError, match=r"has no weights of a vision part, expected vit\.\* or"):
        write_vision({}, settings)
    assert str(vision_part(settings).inputs[0]) == "patches=float32[down,across,48]"
