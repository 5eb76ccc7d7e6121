"""How well a checkpoint reads pages in fonts that training never saw.

python -m training.evaluate run/last.pt --fonts training/build/fonts --pages 210 -o run/scores.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.fonts import Fonts
from training.model import made
from training.reading import answers
from training.render import HELD_SEED, LARGE, Page, Shape, render

_TAIL = re.compile(r"\((\d+),(\d+)\),\((\d+),(\d+)\)")


def held_pages(fonts: Path, count: int, shapes: Sequence[Shape] = LARGE) -> list[Page]:
    """Full pages in held-out fonts, always the same ones."""
    opened = Fonts.open(fonts, held=True)
    return [
        render(number, seed=HELD_SEED, fonts=opened, shape=shapes[number % len(shapes)])
        for number in range(count)
    ]


def scores(model: Any, pages: Sequence[Page]) -> dict[str, dict[str, Any]]:
    """By task and for all: character error rate, share of answers that are right to the letter, pages."""
    return judged(pages, answers(model, pages))


def judged(pages: Sequence[Page], said: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The scores of answers; spotting is also scored without its coordinates, and by how far those are off."""
    wrong: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
    off: list[float] = []
    for page, answer in zip(pages, said, strict=True):
        row = (distance(page.answer, answer), len(page.answer), page.answer == answer)
        wrong[page.task].append(row)
        plain, told = _TAIL.sub("\n", page.answer), _TAIL.sub("\n", answer)
        wrong["all"].append((distance(plain, told), len(plain), row[2]))
        if page.task == "spotting":
            wrong["spotting_text"].append((distance(plain, told), len(plain), plain == told))
            off += _off(page.answer, answer)
    found = {task: _summed(rows) for task, rows in sorted(wrong.items())}
    if off:
        found["spotting"]["coordinate_off_mean"] = float(np.mean(off))
        found["spotting"]["coordinate_off_p95"] = float(np.quantile(off, 0.95))
    return found


def _summed(rows: Sequence[tuple[int, int, bool]]) -> dict[str, Any]:
    return {
        "cer": sum(row[0] for row in rows) / max(1, sum(row[1] for row in rows)),
        "exact": sum(row[2] for row in rows) / len(rows),
        "pages": len(rows),
    }


def _off(wanted: str, said: str) -> list[float]:
    """How far each coordinate is off, in thousandths of the page, where the lines are as many as they should be."""
    one, other = ([[int(each) for each in found] for found in _TAIL.findall(text)] for text in (wanted, said))
    if len(one) != len(other):
        return []
    return [
        abs(a - b)
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    ]


def distance(one: str, other: str) -> int:
    """How many characters have to be put in, taken out or changed (Levenshtein)."""
    letters = np.array([ord(each) for each in other], np.int64)
    steps = np.arange(len(other) + 1)
    row = steps.copy()
    for number, letter in enumerate(one, 1):
        over = np.minimum(row[1:] + 1, row[:-1] + (letters != ord(letter)))
        row = np.minimum.accumulate(np.concatenate(([number], over)) - steps) + steps
    return int(row[-1])


def loaded(file: Path, device: torch.device) -> Any:
    """The model of a checkpoint of `train.py`."""
    state = torch.load(file, map_location=device, weights_only=True)
    model = made(state["size"], 0).to(device)
    model.load_state_dict(state["model"])
    return model.eval()


def main() -> None:
    """Print the scores of a checkpoint, and write them with some pages that were read wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=210)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    model = loaded(given.checkpoint, torch.device(given.device))
    _rounded(model, getattr(torch, given.dtype))
    pages = held_pages(given.fonts, given.pages)
    said = answers(model, pages)
    found = judged(pages, said)
    for task, row in found.items():
        print(task, json.dumps({key: round(value, 4) for key, value in row.items()}))
    if given.output:
        wrong = [
            _shown(page, answer) for page, answer in zip(pages, said, strict=True) if page.answer != answer
        ]
        result = {"scores": found, "stored_as": given.dtype, "seed": HELD_SEED, "wrong": wrong[:40]}
        given.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _rounded(model: Any, dtype: torch.dtype) -> None:
    """Weights as they would be stored."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).to(parameter.dtype))


def _shown(page: Page, answer: str) -> Mapping[str, Any]:
    return {"page": page.number, "task": page.task, "wanted": page.answer, "said": answer}


if __name__ == "__main__":
    main()
