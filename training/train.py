"""Train the small HunyuanOCR, in pieces that end in time and go on where the last one stopped.

    python -m training.train --fonts training/build/fonts -o run --minutes 8.5 --of 17
    python -m training.train --fonts training/build/fonts -o run --minutes 8.5 --of 17 --resume run/last.pt

How far the training is, the learning rate and the kind of pages follow the minutes that were trained, all pieces
together, or with --steps the steps: then every run sees the same pages and ends with the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training.batches import STAGES, Batch, Plan, Span, drawn_ahead
from training.evaluate import held_pages, scores
from training.learning import Speller, losses, moved
from training.model import SIZES, made
from training.muon import Muon
from training.ready import Ready

BEGAN = time.monotonic()
"""A piece's minutes count from here on, what starting takes included."""
_STEPS_OF_A_SEED = 1 << 24
_READS, _LATEST = 1.0, 0.2
"""Below which loss of the answers larger pages come, and from which share of the time on in any case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate and weight of the losses beside that of the answers by the share of the training that is done."""

    rate: float
    warm: int
    floor: float = 0.01

    def rate_at(self, step: int, progress: float) -> float:
        """Up in a straight line over the first steps, then down like a cosine to a hundredth."""
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.rate * min(1.0, (step + 1) / self.warm) * (self.floor + (1 - self.floor) * cosine)

    @staticmethod
    def beside_at(progress: float) -> float:
        """Much at first, when it is what teaches letters to the vision part, and to the decoder where to look."""
        return 1.0 - 0.8 * min(1.0, progress / 0.6)


class Training:
    """A model while it is trained: weights, moments, and how much was done; saved whole, aside, then renamed.

    Matrices between hidden states are stepped by `hidden`, everything else by `optimizer`, at the same rate.
    """

    def __init__(self, size: str, seed: int, schedule: Schedule, device: torch.device) -> None:
        self.size, self.seed, self.schedule, self.device = size, seed, schedule, device
        self.model = made(size, seed).to(device)
        self.speller = Speller(self.model.config.text_config.hidden_size).to(device)
        self.step, self.seconds, self.reads = 0, 0.0, False
        hidden, groups = _groups(self.model, self.speller)
        self.hidden = Muon(hidden, lr=schedule.rate, weight_decay=0.05)
        self.optimizer = torch.optim.AdamW(
            groups, lr=schedule.rate, betas=(0.9, 0.98), fused=device.type == "cuda"
        )

    def learn(self, batch: Batch, progress: float, *, worn: bool = True) -> dict[str, torch.Tensor]:
        """One step, from drawings that are worn first or from pages that are; losses stay on the device."""
        rate = self.schedule.rate_at(self.step, progress)
        for group in (*self.optimizer.param_groups, *self.hidden.param_groups):
            group["lr"] = rate
        chance = self.seed * _STEPS_OF_A_SEED + self.step if worn else None
        with autocast(self.device):
            found = losses(self.model, self.speller, moved(batch, self.device, chance))
        torch.autograd.backward(
            found.answers + self.schedule.beside_at(progress) * (found.cells + found.looks)
        )
        norm = nn.utils.clip_grad_norm_([*self.model.parameters(), *self.speller.parameters()], 1.0)
        for optimizer in (self.optimizer, self.hidden):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {
            "answers": found.answers.detach(),
            "cells": found.cells.detach(),
            "looks": found.looks.detach(),
            "right": found.right,
            "norm": norm,
        }

    def seen(self, answers: float) -> None:
        """Take note of a loss: below 0.6 the model reads, and does not just guess what is likely."""
        if not math.isfinite(answers):
            raise FloatingPointError(
                f"the loss is {answers} at step {self.step}: go on from the last checkpoint with a lower --rate"
            )
        self.reads = self.reads or answers < _READS

    def save(self, file: Path) -> None:
        """Everything that going on needs."""
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".part")
        state = {
            "size": self.size,
            "step": self.step,
            "seconds": self.seconds,
            "reads": self.reads,
            "model": self.model.state_dict(),
            "speller": self.speller.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "hidden": self.hidden.state_dict(),
        }
        torch.save(state, aside)
        os.replace(aside, file)

    def load(self, file: Path) -> None:
        """Go on from what `save` left."""
        state = torch.load(file, map_location=self.device, weights_only=True)
        if state["size"] != self.size:
            raise ValueError(f"{file} is a training of size {state['size']!r}, not {self.size!r}")
        self.model.load_state_dict(state["model"])
        self.speller.load_state_dict(state["speller"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.hidden.load_state_dict(state["hidden"])
        self.step, self.seconds, self.reads = state["step"], state["seconds"], state["reads"]


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in bf16; weights, sums and norms stay fp32."""
    return torch.autocast(device.type, torch.bfloat16)


def _groups(model: nn.Module, speller: nn.Module) -> tuple[list[nn.Parameter], list[dict[str, Any]]]:
    """The matrices between hidden states; what else there is, with weight decay for what multiplies states alone."""
    hidden: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (plain if parameter.ndim < 2 or "embed" in name else hidden).append(parameter)
    decayed = [parameter for parameter in speller.parameters() if parameter.ndim > 1]
    plain += [parameter for parameter in speller.parameters() if parameter.ndim < 2]
    return hidden, [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]


def plan_of(given: argparse.Namespace) -> Plan:
    """What the pages of this training are drawn from."""
    return Plan(
        seed=given.seed, fonts=given.fonts, patches=given.patches, rows=given.rows, pages=given.overfit
    )


def run(training: Training, given: argparse.Namespace) -> None:
    """Learn until the minutes of this piece or all steps are over, and save."""
    shown = multiprocessing.Value("d", paced(_progress(training, given), reads=training.reads))
    batches = drawn_ahead(
        plan_of(given),
        Span(first=training.step, steps=given.steps),
        shown,
        workers=given.workers,
        pin=training.device.type == "cuda",
    )
    times = given.times if given.steps is None else 1
    with (
        (given.output / "log.jsonl").open("a", encoding="utf-8") as log,
        Ready(batches, times=times) as ready,
    ):
        _learn(training, given, ready, shown, Log(log))
    training.save(given.output / "last.pt")


def paced(progress: float, *, reads: bool) -> float:
    """How far the pages are: those of the first stage stay until they are read, a quarter of the time at most."""
    return progress if reads or progress > _LATEST else min(progress, STAGES[1].after - 1e-6)


class Log:
    """What happened, a line each, in a file and on the screen."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def say(self, row: dict[str, Any]) -> None:
        """One line."""
        text = json.dumps(
            {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
        )
        self._file.write(text + "\n")
        self._file.flush()
        print(text, flush=True)


class Meter:
    """Pages and seconds since the last line that said them."""

    def __init__(self, batches: Ready[Batch]) -> None:
        self._batches = batches
        self._begin()

    def _begin(self) -> None:
        self.pages, self.waited, self.since = 0, 0.0, time.monotonic()
        self._counts = self._batches.fresh, self._batches.again

    def read(self) -> dict[str, float]:
        """Pages a second, shares of the time without a batch and of batches that came for the first time; anew."""
        took = time.monotonic() - self.since
        fresh = self._batches.fresh - self._counts[0]
        again = self._batches.again - self._counts[1]
        found = {
            "pages_per_s": self.pages / took,
            "waited": self.waited / took,
            "fresh": fresh / max(1, fresh + again),
        }
        self._begin()
        return found


def _learn(
    training: Training, given: argparse.Namespace, batches: Ready[Batch], shown: Any, log: Log
) -> None:
    saved = judged = time.monotonic()
    meter = Meter(batches)
    while not _over(training, given):
        before = time.monotonic()
        batch = next(batches)
        meter.waited += time.monotonic() - before
        progress = _progress(training, given)
        found = training.learn(batch, progress, worn=given.overfit is None)
        meter.pages += len(batch.levels)
        if training.step % given.log == 0 or training.step == given.steps:
            values = {name: float(value) for name, value in found.items()}  # waits for the device
            done = {"step": training.step, "minutes": training.seconds / 60, "progress": progress}
            rate = {
                "rate": training.optimizer.param_groups[0]["lr"],
                "shape": [len(batch.levels), *batch.sides.tolist()],
            }
            log.say({**done, **values, **rate, **meter.read()})
            training.seen(values["answers"])
        training.seconds += time.monotonic() - before
        shown.value = paced(_progress(training, given), reads=training.reads)
        if time.monotonic() - judged > given.judge * 60:
            _judge(training, given, log)
            judged, meter = time.monotonic(), Meter(batches)
        if time.monotonic() - saved > given.save * 60:
            training.save(given.output / "last.pt")
            saved = time.monotonic()
    if given.judge_pages:
        _judge(training, given, log)


def _progress(training: Training, given: argparse.Namespace) -> float:
    return float(training.step / given.steps if given.steps else training.seconds / 60 / given.of)


def _over(training: Training, given: argparse.Namespace) -> bool:
    if given.steps is not None and training.step >= (given.until or given.steps):
        return True
    return given.minutes is not None and time.monotonic() - BEGAN > given.minutes * 60


def _judge(training: Training, given: argparse.Namespace, log: Log) -> None:
    """Read pages in fonts that training does not see, or those that are learned by heart; not part of its time."""
    began = time.monotonic()
    if given.overfit is None:
        pages = held_pages(given.fonts, given.judge_pages)
    else:
        pages = plan_of(given).by_heart(range(given.overfit))
    with autocast(training.device):
        found = scores(training.model, pages)
    row = {f"cer_{task}": values["cer"] for task, values in found.items()}
    log.say({"step": training.step, "judged_s": time.monotonic() - began, **row})


def arguments() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fonts", type=Path, required=True, help="what subset_fonts wrote")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--minutes", type=float, help="when this piece ends, its start included")
    parser.add_argument(
        "--of", type=float, default=17.0, help="minutes of all pieces, which the schedule is for"
    )
    parser.add_argument("--steps", type=int, help="a schedule over steps instead of minutes")
    parser.add_argument("--until", type=int, help="with --steps: stop, and save, after this one")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warm", type=int, default=400, help="steps over which the rate rises")
    parser.add_argument("--patches", type=int, default=131072, help="patches of a batch at most")
    parser.add_argument("--rows", type=int, default=256, help="pages of a batch at most")
    parser.add_argument("--times", type=int, default=3, help="learn from a drawing so often if none is ready")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--judge", type=float, default=2.0, help="minutes between readings of held-out pages")
    parser.add_argument("--judge-pages", type=int, default=42)
    parser.add_argument("--save", type=float, default=2.0, help="minutes between checkpoints")
    parser.add_argument("--log", type=int, default=50, help="steps between lines")
    parser.add_argument("--overfit", type=int, help="learn so many small pages by heart")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def main() -> None:
    """Train one piece."""
    given = arguments().parse_args()
    if given.minutes is None and given.steps is None:
        raise SystemExit("say when to stop: --minutes or --steps")
    torch.backends.cuda.matmul.allow_tf32 = True
    given.output.mkdir(parents=True, exist_ok=True)
    schedule = Schedule(rate=given.rate, warm=given.warm)
    training = Training(given.size, given.seed, schedule, torch.device(given.device))
    if given.resume:
        training.load(given.resume)
    run(training, given)


if __name__ == "__main__":
    main()
