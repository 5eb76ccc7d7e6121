"""Models that read images, each in every precision that passes its gate, beside PyTorch eager and in turns with it.

The weights come from ordinary packages, but for ViT-base/16, which none ships: drawn ones are as fast. All is judged on
64 crops of photographs, and int8 calibrated on them.

    PYTHONPATH=tests/models python examples/bench_images.py [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import packaged
import torch
import transformers
from photos import photographs

HERE = Path("demo") / "images"
PRECISIONS = ("fp32", "bf16", "int8")
BUDGETS = {"dinov2-small": "2%", "vit-base": "2%"}
"""What int8 may lose; 0.4 % where nothing stands here."""

CROPS = 64


def vit(to: Path) -> Path:
    """A ViT-base with patches of 16 x 16 pixels, its weights drawn."""
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig()).save_pretrained(to)
    told = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 224, "width": 224},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (to / "preprocessor_config.json").write_text(json.dumps(told))
    return to


MODELS: dict[str, Callable[[Path], Path]] = {
    "efficientnet-lite0": packaged.efficientnet,
    "open-nsfw": packaged.open_nsfw,
    "dinov2-small": packaged.dinov2,
    "vit-base": vit,
}


def main() -> int:
    """Build what is compared, then compare it, model by model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--shapes", default="1,8", help="images in a call")
    parser.add_argument("--rounds", default="40")
    parser.add_argument("--build-only", action="store_true", help="compare another time")
    given = parser.parse_args()
    crops = HERE / "photographs"
    if not crops.is_dir():
        photographs(crops, CROPS)
    for name in given.models:
        folder = HERE / name
        if not (folder / "model.safetensors").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            MODELS[name](folder)
        bundles = [bundle for precision in PRECISIONS if (bundle := built(name, folder, precision, crops))]
        if not given.build_only:
            alula("bench", *bundles, "--shapes", given.shapes, "--threads", "2", "--rounds", given.rounds)
    return 0


def built(name: str, folder: Path, precision: str, crops: Path) -> str:
    """The bundle of a precision; empty where that fails its gate, which says why."""
    bundle = str(HERE / f"{name}-{precision}")
    options = ("--target", "openvino", "--precision", precision, "--name", f"{name}-{precision}")
    rows = ("--data", str(crops), "--budget", BUDGETS.get(name, "0.4%"))
    done = alula("build", str(folder), "-o", bundle, *options, *rows, must=False)
    return bundle if done == 0 else ""


def alula(*args: str, must: bool = True) -> int:
    """Run one command as a user would."""
    return subprocess.run([sys.executable, "-m", "alula", *args], check=must).returncode


if __name__ == "__main__":
    sys.exit(main())
