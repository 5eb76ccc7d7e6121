"""Write a checkpoint of `train.py` as a model folder like any other: fp16 safetensors, processor, tokenizer, card.

python -m training.export run/last.pt --scores run/scores.json --machine 'one H200' -o run/model
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from training.characters import CHINESE
from training.evaluate import loaded
from training.fonts import FACES
from training.model import DEVIATION, LEAST_PIXELS, MEAN, MOST_PIXELS
from training.tokenizer import ASSISTANT, BEGIN, DONE, PAD, write_tokenizer

CARD = Path(__file__).with_name("card.md")
MOST_BYTES = 15_000_000
"""What the weights may take where they are shipped."""
MOST_WRONG = 0.02
"""The character error rate that is asked of all tasks together."""

PROCESSOR: Mapping[str, Any] = {
    "image_processor_type": "HunYuanVLImageProcessor",
    "processor_class": "HunYuanVLProcessor",
    "min_pixels": LEAST_PIXELS,
    "max_pixels": MOST_PIXELS,
    "size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS},
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 1,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_convert_rgb": True,
    "resample": 3,
    "image_mean": list(MEAN),
    "image_std": list(DEVIATION),
}


def export(model: Any, folder: Path) -> int:
    """Write the folder; returns the bytes of its weights, and refuses more than may be shipped."""
    tokenizer = write_tokenizer(folder)
    ids = tokenizer.token_to_id
    for parameter in (each.detach() for each in model.parameters()):
        if not bool(torch.isfinite(parameter).all()) or float(parameter.abs().max()) > 6e4:
            raise ValueError("the weights have numbers that fp16 does not hold")
    model.to("cpu", torch.float16).save_pretrained(folder)
    _write(folder / "preprocessor_config.json", PROCESSOR)
    generation = {
        "do_sample": False,
        "repetition_penalty": 1.0,
        "bos_token_id": ids(BEGIN),
        "eos_token_id": [ids(ASSISTANT), ids(DONE)],
        "pad_token_id": ids(PAD),
    }
    _write(folder / "generation_config.json", generation)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size > MOST_BYTES:
        raise ValueError(f"the weights take {size:,} bytes, at most {MOST_BYTES:,} may be shipped")
    return size


def card(scores: Mapping[str, Mapping[str, Any]], parameters: int, size: int, trained: str) -> str:
    """The model card; its figures are those of `evaluate.py`."""
    rows = "\n".join(
        f"| {task} | {row['cer']:.2%} | {row['exact']:.0%} | {row['pages']} |" for task, row in scores.items()
    )
    held = ", ".join(dict.fromkeys(face.package for face in FACES if face.held))
    seen = len({face.package for face in FACES if not face.held})
    return CARD.read_text("utf-8").format(
        millions=parameters / 1e6,
        megabytes=size / 1e6,
        trained=trained,
        most=MOST_PIXELS,
        chinese=len(CHINESE),
        held=held,
        seen=seen,
        rows=rows,
        verdict=_verdict(scores),
    )


def _verdict(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether what was asked is reached, and how far off coordinates are, in thousandths of the page's sides."""
    reached = "reached" if scores["all"]["cer"] <= MOST_WRONG else "**not reached**"
    spotting = scores["spotting"]
    return (
        f"At most {MOST_WRONG:.0%} of `all` was asked, which is {reached}. Where as many lines are found as there are, "
        f"coordinates are off by {spotting['coordinate_off_mean']:.0f} thousandths of the page's sides in the mean, "
        f"a twentieth of them by more than {spotting['coordinate_off_p95']:.0f}."
    )


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def main() -> None:
    """Export, and write the card with the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--scores", type=Path, required=True, help="what evaluate.py wrote")
    parser.add_argument("--machine", required=True, help="what it was trained on, for the card")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    state = torch.load(given.checkpoint, map_location="cpu", weights_only=True)
    model = loaded(given.checkpoint, torch.device("cpu"))
    count = sum(parameter.numel() for parameter in model.parameters())
    size = export(model, given.output)
    scores = json.loads(given.scores.read_text("utf-8"))["scores"]
    trained = f"{state['seconds'] / 60:.1f} minutes, {state['step']:,} steps on {given.machine}"
    text = card(scores, count, size, trained)
    (given.output / "README.md").write_text(text, "utf-8")
    print(f"{given.output}: {count:,} parameters, {size:,} bytes")


if __name__ == "__main__":
    main()
