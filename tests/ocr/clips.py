"""Videos that tests make, whose subtitles are white bars, and a reader of bars."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from alula.documents import Block, Page, Scan, Task, rectangle
from alula.ocr import Ask

WIDTH, HEIGHT, LETTERS = 160, 120, "ABCD"
STRIP = slice(90, 110)
"""The rows that bars stand in."""


@dataclass(frozen=True)
class Cue:
    """A subtitle: from when to when, in seconds, and its letters, of A to D."""

    begin: float
    end: float
    text: str


def clip(
    path: Path, cues: Sequence[Cue], *, seconds: float = 4.0, rate: int = 10, moving: bool = True
) -> str:
    """Write a video; where it moves, no picture is like the one before."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(round(seconds * rate)):
            picture = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
            if moving:
                picture[20:50, number * 3 % 120 : number * 3 % 120 + 30] = (200, 90, 30)
            for cue in cues:
                if cue.begin <= number / rate < cue.end:
                    for letter in cue.text:
                        left = 10 + 40 * LETTERS.index(letter)
                        picture[STRIP, left : left + 20] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return str(path)


class BarReader:
    """Reads bars as letters, where they stand; `seen` counts the pictures it was given."""

    name = "bars"

    def __init__(self, tasks: Collection[Task] = ("subtitle", "spotting")) -> None:
        self.tasks = tasks
        self.seen = 0

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """Pages in their order."""
        for scan in scans:
            self.seen += 1
            strip = scan.pixels[STRIP].mean(axis=(0, 2))
            found = [
                (at, letter)
                for at, letter in enumerate(LETTERS)
                if strip[15 + 40 * at : 25 + 40 * at].mean() > 190
            ]
            boxes = [rectangle(10 + 40 * at, STRIP.start, 30 + 40 * at, STRIP.stop) for at, _ in found]
            blocks = [
                Block(kind="line", text=letter, box=box)
                for (_, letter), box in zip(found, boxes, strict=True)
            ]
            blocks.append(Block(kind="line", text="sign", box=rectangle(0, 20, 30, 50)))
            text = "".join(letter for _, letter in found)
            if ask.task == "spotting":
                yield Page.of(scan, blocks=tuple(blocks), text=f"sign\n{text}")
            else:
                yield Page.of(scan, text=text)

    def close(self) -> None:
        """Nothing is held."""
