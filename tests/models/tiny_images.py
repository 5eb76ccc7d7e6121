"""Small classifiers of images with random weights, as whole checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: Mapping[str, Mapping[str, Any]] = {
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]},
    "efficientnet": {
        **{"width_coefficient": 0.25, "depth_coefficient": 1.0, "hidden_dim": 320, "kernel_sizes": [3, 5]},
        **{"in_channels": [32, 16], "out_channels": [16, 24], "strides": [1, 2]},
        **{"num_block_repeats": [1, 2], "expand_ratios": [1, 4]},
    },
    "vit": {
        **{"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 96},
        **{"image_size": 32, "patch_size": 8},
    },
    "deit": {
        **{"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 96},
        **{"image_size": 32, "patch_size": 8},
    },
    "dinov2": {
        **{"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "mlp_ratio": 2},
        **{"image_size": 32, "patch_size": 8, "layerscale_value": 0.5},
    },
}
SIDE = 32


def scatter(model: Any) -> None:
    """Give a network random weights and statistics of batches."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
                tensor.uniform_(0.5, 2)
            elif tensor.dim() == 4:
                # As wide as keeps the differences between images alive through all layers.
                tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5)
            elif not name.endswith("num_batches_tracked"):
                tensor.add_(torch.randn_like(tensor) * 0.1)


def image_checkpoint(to: Path, model_type: str, **settings: Any) -> Path:
    """A folder with everything that `alula build` reads; the norms' statistics are random too."""
    values = {"num_labels": 5, "architectures": [], **SIZES[model_type], **settings}
    config = transformers.AutoConfig.for_model(model_type, **values)
    torch.manual_seed(0)
    model = transformers.AutoModelForImageClassification.from_config(config)
    scatter(model)
    model.save_pretrained(to)
    size = {"height": SIDE, "width": SIDE}
    halves = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    told = {"image_processor_type": "ViTImageProcessor", "size": size, **halves}
    (to / "preprocessor_config.json").write_text(json.dumps(told))
    return to
