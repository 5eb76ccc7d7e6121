"""What makes a model that writes fp16: measured on scripts, shrunk where it is too large, and then it fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_decoders
from safetensors.torch import load_file, save_file

from alula import families, graphs
from alula.core.profile import Profile, Range
from alula.magnitudes import fitted_to_fp16
from alula.verify import Script

PROFILE = Profile(
    {
        "batch": Range(1, 1, 8),
        "length": Range(1, 1, 16),
        "past": Range(64, 64, 64),
        "total": Range(65, 65, 80),
        "answers": Range(1, 1, 1),
    }
)
SCRIPTS = tuple(
    Script(name=str(at), prompt=tuple(range(2, 2 + size)), follow=(5, 7))
    for at, size in enumerate((1, 6, 20))
)
POLICY = graphs.half_policy("tensorrt", 17)


@pytest.mark.parametrize(("times", "shrink"), [(1.0, {1.0}), (4e5, {2.0**-at for at in range(1, 12)})])
def test_a_stream_that_leaves_the_range_is_shrunk_until_it_fits(
    times: float, shrink: set[float], tmp_path: Path
) -> None:
    """A projection made much larger sends the sums behind it beyond fp16, as SmolLM2's do, and nothing else."""
    tiny_decoders.checkpoint(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.down_proj.weight"] *= times
    save_file(weights, file, metadata={"format": "pt"})
    checkpoint = families.open_checkpoint(str(tmp_path))
    spec = families.describe(checkpoint)
    fitted = fitted_to_fp16(checkpoint, spec, PROFILE, SCRIPTS, POLICY)
    assert fitted.shrink["decoder"] in shrink
    assert fitted.beyond == frozenset()


def test_what_no_power_of_two_helps_stays_fp32(tmp_path: Path) -> None:
    tiny_decoders.checkpoint(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"] *= 1e4
    weights["model.layers.1.mlp.down_proj.weight"] *= 1e-4
    save_file(weights, file, metadata={"format": "pt"})
    checkpoint = families.open_checkpoint(str(tmp_path))
    fitted = fitted_to_fp16(checkpoint, families.describe(checkpoint), PROFILE, SCRIPTS, POLICY)
    assert fitted.shrink["decoder"] == 1
    assert "layers.1.mlp.up_proj/MatMul" in fitted.beyond
