"""A checkpoint small enough to travel, in parts, and back again.

    python -m training.pack run/last.pt parts          # parts/checkpoint.0, .1, ... of at most 15 MiB
    python -m training.pack --back parts run/last.pt

Weights stay as they are; AdamW's squares and Muon's momentum travel in bf16, AdamW's means, which ten steps bring
back, do not.
Going on from such a checkpoint is therefore not the same to the last bit.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import torch

PART = 15 * 2**20
_NAME = "checkpoint."


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint without what can be had again."""
    moments = {
        key: {"step": value["step"], "exp_avg_sq": value["exp_avg_sq"].bfloat16()}
        for key, value in state["optimizer"]["state"].items()
    }
    model = {key: value for key, value in state["model"].items() if key != "lm_head.weight"}
    momenta = {
        key: {"momentum": value["momentum"].bfloat16()} for key, value in state["hidden"]["state"].items()
    }
    hidden = {**state["hidden"], "state": momenta}
    return {**state, "model": model, "optimizer": {**state["optimizer"], "state": moments}, "hidden": hidden}


def unpacked(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint that `train.py` goes on from."""
    moments = {
        key: {
            "step": value["step"],
            "exp_avg": torch.zeros_like(value["exp_avg_sq"], dtype=torch.float32),
            "exp_avg_sq": value["exp_avg_sq"].float(),
        }
        for key, value in state["optimizer"]["state"].items()
    }
    model = {**state["model"], "lm_head.weight": state["model"]["model.language_model.embed_tokens.weight"]}
    return {**state, "model": model, "optimizer": {**state["optimizer"], "state": moments}}


def split(state: dict[str, Any], folder: Path) -> list[Path]:
    """Write a state as files of at most `PART` bytes."""
    file = io.BytesIO()
    torch.save(state, file)
    whole = file.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, start in enumerate(range(0, len(whole), PART)):
        parts.append(folder / f"{_NAME}{number}")
        parts[-1].write_bytes(whole[start : start + PART])
    return parts


def whole(folder: Path) -> dict[str, Any]:
    """The state of all parts in a folder."""
    parts = sorted(folder.glob(_NAME + "*"), key=lambda part: int(part.suffix[1:]))
    if not parts:
        raise FileNotFoundError(f"{folder} has no {_NAME}0")
    file = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def main() -> None:
    """Pack, or with --back unpack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--back", action="store_true")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    if given.back:
        given.target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(unpacked(whole(given.source)), given.target)
        print(given.target)
    else:
        state = torch.load(given.source, map_location="cpu", weights_only=True)
        for part in split(packed(state), given.target):
            print(part, part.stat().st_size)


if __name__ == "__main__":
    main()
