"""HunyuanOCR with random weights at its published sizes, or small enough for a CPU: checkpoint, pages and prompts.

python -m gpu_bench.ocr_model FOLDER published|tiny     writes the checkpoint; torch and transformers are needed

Numbers are drawn on a GPU where there is one, which takes seconds.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = ("published", "tiny")
TEXT: Mapping[str, Any] = {
    "vocab_size": 120818,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "mrope_section": [16] * 4,
}
VISION: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 16,
    "max_image_size": 2048,
    "text_hidden_size": 1024,
    "out_hidden_size": 1024,
}
PROCESSOR: Mapping[str, Any] = {"min_pixels": 320 * 320, "max_pixels": 2048 * 2048, "patch_size": 16}
"""The published ones but for the fewest pixels, 512 x 512 there: pages of 320 x 320 are measured as they are."""

QUESTION = "Extract the text in the image."


TINY: Mapping[str, Any] = {"num_hidden_layers": 3, "max_position_embeddings": 8192}
"""What else the tests' model has here: it is cut into as many blocks as the published one, for as long prompts."""


def write(to: Path, size: str, layers: tuple[int, int] | None = None) -> None:
    """A checkpoint in fp32, complete or not there; `layers` of decoder and vision part, where others are wanted.

    Weights are so large that other pages get other answers.
    """
    import tiny_hunyuan  # noqa: PLC0415 - the tests' own model
    import torch  # noqa: PLC0415 - engines are built where there is none
    from transformers import HunYuanVLConfig, HunYuanVLForConditionalGeneration  # noqa: PLC0415 - likewise

    aside = to.with_name(f".{to.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    config, processor = sizes(tiny_hunyuan, size, layers)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = HunYuanVLForConditionalGeneration(HunYuanVLConfig(**config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(0, 0.1).add_("norm" in name or "rms" in name)
            else:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
    model.tie_weights()
    model.cpu().save_pretrained(aside)
    tiny_hunyuan.write_text_files(aside, **processor)
    aside.rename(to)


def sizes(
    tiny: Any, size: str, layers: tuple[int, int] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configuration of a size, with what it does not say as the tests' model has it; the image processor's."""
    if size == "tiny":
        text, vision = {**tiny.TEXT, **TINY}, {**tiny.VISION, "num_hidden_layers": TINY["num_hidden_layers"]}
    else:
        text, vision = {**tiny.TEXT, **TEXT}, dict(VISION)
        text["rope_parameters"] = {**text["rope_parameters"], "mrope_section": text.pop("mrope_section")}
    if layers is not None:
        text["num_hidden_layers"], vision["num_hidden_layers"] = layers
    config = {**tiny.CONFIG, "text_config": text, "vision_config": vision}
    return config, {} if size == "tiny" else PROCESSOR


def page(size: Sequence[int], seed: int) -> NDArray[np.uint8]:
    """Levels of a noisy page of this height and width, [height, width, 3]."""
    height, width = size
    return np.random.default_rng([seed, height, width]).integers(0, 256, (height, width, 3), np.uint8)


def files(folder: Path, size: Sequence[int], count: int) -> list[str]:
    """Pages as PNG files, barely compressed: noise has nothing to be pressed out of it."""
    from PIL import Image  # noqa: PLC0415 - a checkpoint is written without it

    names = [folder / f"{at}.png" for at in range(count)]
    for seed, name in enumerate(names):
        Image.fromarray(page(size, seed)).save(name, compress_level=1)
    return [str(name) for name in names]


def prompts_of(folder: Path) -> Any:
    """What turns pages and questions into requests, as a bundle of this checkpoint would."""
    from alula.codecs import Patcher, TextCodec  # noqa: PLC0415 - a checkpoint is written without them
    from alula.families import open_checkpoint  # noqa: PLC0415 - likewise
    from alula.prompting import SETTINGS, Prompts, read_defaults  # noqa: PLC0415 - likewise

    spec = spec_of(open_checkpoint(str(folder)))
    codec, patcher = TextCodec.open(folder, spec), Patcher.open(folder)
    return Prompts(codec, folder, read_defaults(folder / SETTINGS), spec.max_length, patcher)


def spec_of(checkpoint: Any) -> Any:
    """The model as transformers has it, so that PyTorch is what errors are counted against."""
    from alula import families  # noqa: PLC0415 - likewise

    spec = families.describe(checkpoint)
    return families.with_compat(spec, "transformers")


def main(args: Sequence[str]) -> int:
    """Write one."""
    to, size = args
    write(Path(to), size)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
