"""Checkpoints with seeded random weights, written by transformers.

python -m gpu_bench.prepare FOLDER NAME [NAME ...]      a name with ":tiny" behind it is small enough for a CPU
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from gpu_bench.drawn import normalised, pictures

SEED = 0
_BATCHES = 3

_BERT_TINY: Mapping[str, Any] = {
    **{"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 48},
    **{"vocab_size": 100, "max_position_embeddings": 64},
}
_RESNET_TINY: Mapping[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
_DINOV2_TINY: Mapping[str, Any] = {
    **{"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "mlp_ratio": 2},
    **{"image_size": 32, "patch_size": 8},
}


def bert(to: Path, *, tiny: bool) -> None:
    """BERT-base: only the encoder, whose states are pooled by whoever runs it."""
    config = transformers.BertConfig(**(_BERT_TINY if tiny else {}))
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(to)


def resnet50(to: Path, *, tiny: bool) -> None:
    """ResNet-50 with the statistics of its norms taken from some batches, so that no layer's values run away."""
    config = transformers.ResNetConfig(num_labels=1000, **(_RESNET_TINY if tiny else {}))
    model = transformers.ResNetForImageClassification(config)
    side = processor(to, 32 if tiny else 224)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean over all batches
    model.train()
    with torch.no_grad():
        for seed in range(_BATCHES):
            model(pixel_values=torch.from_numpy(normalised(pictures(seed, (8, 3, side, side)), to)))
    model.eval().save_pretrained(to)


def dinov2(to: Path, *, tiny: bool) -> None:
    """DINOv2-small with a classifier; for runs where no trained weights are at hand."""
    sizes: Mapping[str, Any] = (
        _DINOV2_TINY
        if tiny
        else {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
    )
    config = transformers.Dinov2Config(num_labels=1000, **sizes)
    transformers.Dinov2ForImageClassification(config).save_pretrained(to)
    processor(to, 32 if tiny else 224)


def processor(to: Path, side: int) -> int:
    """Say that the model takes square images of this side."""
    to.mkdir(parents=True, exist_ok=True)
    size = {"height": side, "width": side}
    told = {"image_processor_type": "ViTImageProcessor", "size": size}
    (to / "preprocessor_config.json").write_text(json.dumps(told), "utf-8")
    return side


MAKERS: Mapping[str, Callable[..., None]] = {"bert": bert, "resnet50": resnet50, "dinov2": dinov2}


def make(root: Path, name: str, *, tiny: bool) -> Path:
    """The folder of a checkpoint, written whole or not at all; one that is there stays."""
    to = root / name
    if to.is_dir():
        return to
    aside = root / f".{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    torch.manual_seed(SEED)
    MAKERS[name](aside, tiny=tiny)
    aside.rename(to)
    return to


def main(args: Sequence[str]) -> int:
    """Make what is named."""
    root, *names = args
    for each in names:
        name, _, small = each.partition(":")
        print(make(Path(root), name, tiny=small == "tiny"), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
