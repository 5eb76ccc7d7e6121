"""Pages read by three models: one finds lines, one says which way up they are, one reads each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from alula.bundles import Bundle
from alula.codecs import DetectionCodec, Detector, Line, Raster, RecognitionCodec, blue_first, refuse_sliver
from alula.codecs import Page as Seen
from alula.core.engine import Engine
from alula.core.errors import InputError
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.documents import Block, Notice, Page, Quad, Scan, Task
from alula.engines import backend
from alula.local import local_engine
from alula.ocr.lines import (
    Looking,
    along,
    batches,
    begun,
    closer,
    cut_above,
    doubtful,
    looked_at,
    piece_end,
    reading_width,
    run_down,
    size,
    turned_back,
    upside_down,
    with_ends,
)
from alula.ocr.opening import PARTS
from alula.ocr.order import Corners, rows_in_order
from alula.ocr.reader import Ask

DETECT, TURN, RECOGNISE = PARTS
TASK_OF = {DETECT: "text-detection", TURN: "image-classification", RECOGNISE: "text-recognition"}

BOXES = Detector(thresh=0.1, box_thresh=0.15, unclip_ratio=0.7)
"""Lower thresholds than RapidOCR's (0.3, 0.5): what is no text is left out once it was read, by its score, and a line
that was not found is lost. Boxes are tighter (1.6 there): letters are then larger in the height that is read."""

SQUEEZE, ENDS = 0.7, 0.35
"""In tight boxes letters may be narrower than they are, for the same answers in less time; what stands at the ends of
lines is often outside the box, by less than so many heights."""

LEAST_SCORE = 0.5
"""What is read with less is left out: it is no text."""

WIDER = 1.0
"""What is read with doubt is read once more, so wide."""

UPSIDE_DOWN = "180"
"""What the model of orientation says of a line that stands on its head."""

_SAMPLE, _WINDOW = 8, 4.0
_ROWS, _CELLS = 8, 2048
"""Of a batch at most: a recogniser gives a probability for each of 18,710 characters at every eighth pixel, and arrays
of more than 32 MB are fresh memory from the system each time, which took a fifth of the time."""


class Pipeline:
    """A detector, a model of orientation and a recogniser as one reader of pages."""

    tasks: Collection[Task] = ("text", "spotting")

    def __init__(
        self,
        name: str,
        parts: Mapping[str, Part],
        *,
        looking: Looking | None = None,
    ) -> None:
        self.name = name
        self._looking = looking or Looking()
        self._detect, self._turn, self._recognise = (parts[part] for part in PARTS)
        self._boxes = DetectionCodec(self._detect.bundle.model, BOXES)
        self._lines = RecognitionCodec(self._recognise.bundle.model)
        [taken] = self._recognise.engine.inputs
        self._height = int(taken.shape[2])
        self._owned = ExitStack()

    @classmethod
    def open(cls, folder: Path, *, threads: int = 0, looking: Looking | None = None) -> Pipeline:
        """The three bundles of a folder, whose engines it owns."""
        with ExitStack() as opening:
            parts = {name: Part.open(folder, name, threads, opening) for name in PARTS}
            pipeline = cls(folder.resolve().name, parts, looking=looking)
            pipeline._owned = opening.pop_all()
            return pipeline

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """One page for each scan, one at a time: lines in reading order with their boxes and scores."""
        del ask  # all tasks are answered with the lines and their places
        for scan in scans:
            try:
                page = self.page(scan)
            except InputError as error:
                page = Page.of(scan, notices=(Notice(code="failed", message=str(error)),))
            yield page

    def close(self) -> None:
        """Release the engines."""
        self._owned.close()

    def page(self, scan: Scan) -> Page:
        """One page; raises InputError for what cannot be read."""
        refuse_sliver(scan.width, scan.height)
        begin = perf_counter()
        raster, boxes, turns = self._upright(scan)
        found = perf_counter()
        read = [
            (box, line)
            for box, line in self._read(raster, [along(box) for box in boxes])
            if line.text.strip() and line.score >= LEAST_SCORE
        ]
        rows = rows_in_order([box for box, _ in read])
        timings = {"find": (found - begin) * 1e3, "recognise": (perf_counter() - found) * 1e3}
        blocks = [
            Block(
                kind="line",
                text=read[at][1].text,
                box=_quad(turned_back(read[at][0], turns, scan.width, scan.height), scan),
                score=read[at][1].score,
            )
            for row in rows
            for at in row
        ]
        text = "\n".join(" ".join(read[at][1].text for at in row) for row in rows)
        return Page.of(scan, text=text, blocks=tuple(blocks), timings=timings)

    def _upright(self, scan: Scan) -> tuple[Raster, list[Corners], int]:
        """The page with its text upright, the boxes on it, and by how many quarters it was turned to the left."""
        raster, turns = Raster(scan.pixels), 0
        boxes = self._find(raster, blank=any(notice.code == "blank" for notice in scan.notices))
        if run_down(boxes):
            raster, turns = Raster(np.rot90(scan.pixels)), 1
            boxes = self._find(raster)
        if self._is_turned(raster, boxes):
            raster, turns = Raster(np.rot90(scan.pixels, turns + 2)), turns + 2
            boxes = self._find(raster)
        return raster, boxes, turns

    def _find(self, raster: Raster, *, blank: bool = False) -> list[Corners]:
        """The boxes of a page; a long one is looked at in pieces, cut between lines."""
        found: list[Corners] = []
        top = 0
        while top < raster.height:
            bottom = piece_end(top, raster.width, raster.height, self._looking.side)
            whole = (top, bottom) == (0, raster.height)
            boxes = self._find_closely(raster if whole else raster.rows(top, bottom), blank=blank)
            end = bottom - top if bottom == raster.height else cut_above(boxes, bottom - top)
            found += [box + np.array([0, top]) for box in boxes if box[:, 1].max() <= end]
            top += end
        return found

    def _find_closely(self, raster: Raster, *, blank: bool) -> list[Corners]:
        """The boxes of a piece, looked at more closely where its text is small."""
        boxes = self._look(raster, self._looking.side)
        longest = max(raster.width, raster.height)
        heights = [min(size(box)) * self._looking.side / longest for box in boxes]
        again = closer(heights, self._looking, 0 if blank else longest)
        return boxes if again is None else self._look(raster, again)

    def _look(self, raster: Raster, side: int) -> list[Corners]:
        """Where either the page or its mirror image shows text: what is lost of a line differs between the two."""
        pixels = blue_first(raster.resized(*looked_at(raster.width, raster.height, side)))
        page = Seen(pixels=pixels, width=raster.width, height=raster.height)
        mirrored = np.ascontiguousarray(pixels[:, :, ::-1])
        outputs = self._detect.run(self._boxes.stacked([pixels, mirrored], self._detect.profile))
        seen, other = outputs["probabilities"][:2]
        found = self._boxes.read({"probabilities": np.maximum(seen, other[:, :, ::-1])}, page)
        return [np.array(box.points, np.float64) for box in found]

    def _is_turned(self, raster: Raster, boxes: Sequence[Corners]) -> bool:
        """Whether most of the longest lines begin with something upside down."""
        longest = sorted(boxes, key=lambda box: -size(box)[0])[:_SAMPLE]
        return bool(longest) and sum(self._turned(raster, box) for box in longest) > len(longest) / 2

    def _turned(self, raster: Raster, box: Corners) -> bool:
        """Whether the beginning of a line looks upside down.

        RapidOCR squeezes the whole line into what the model takes; then one long line of Latin letters in ten is
        taken for turned, and garbled.
        """
        [taken] = self._turn.engine.inputs
        height, width = (int(dim) for dim in taken.shape[2:])
        window = begun(box, _WINDOW)
        pixels = np.zeros((1, 3, height, width), np.float32)
        wide = reading_width(window, height, 1.0, width)
        pixels[0, :, :, :wide] = blue_first(raster.line(window, wide, height))
        [scores] = self._turn.run({taken.name: pixels})["logits"]
        return self._turn.bundle.model.labels[int(scores.argmax())] == UPSIDE_DOWN

    def _read(self, raster: Raster, boxes: Sequence[Corners]) -> list[tuple[Corners, Line]]:
        """Each line; doubtful ones once more, wider, and the other way round, too, if they look it: the best counts."""
        read = list(zip(boxes, self._recognised(raster, boxes, SQUEEZE), strict=True))
        again = [at for at in range(len(read)) if self._doubtful(*read[at])]
        turned = [at for at in again if self._turned(raster, boxes[at])]
        others = [(at, boxes[at]) for at in again] + [(at, upside_down(boxes[at])) for at in turned]
        lines = self._recognised(raster, [box for _, box in others], WIDER)
        for (at, box), line in zip(others, lines, strict=True):
            if line.score > read[at][1].score:
                read[at] = (box, line)
        return read

    def _doubtful(self, box: Corners, line: Line) -> bool:
        return doubtful(line.score, len(line.text), self._width(with_ends(box, ENDS), SQUEEZE))

    def _width(self, box: Corners, squeeze: float) -> int:
        """Of a line as it is read, in pixels."""
        return reading_width(box, self._height, squeeze, self._recognise.profile.axes["width"].max)

    def _recognised(self, raster: Raster, boxes: Sequence[Corners], squeeze: float) -> list[Line]:
        whole = [with_ends(box, ENDS) for box in boxes]
        widths = [self._width(box, squeeze) for box in whole]
        rows = min(_ROWS, self._recognise.profile.axes["batch"].max)
        lines: dict[int, Line] = {}
        for batch in batches(widths, cells=_CELLS, rows=rows):
            pixels = [blue_first(raster.line(whole[at], widths[at], self._height)) for at in batch]
            outputs = self._recognise.run(self._lines.collate(pixels, self._recognise.profile))
            for at, steps in zip(batch, outputs["probabilities"], strict=False):  # engines may pad the rows
                lines[at] = self._lines.read(steps)
        return [lines[at] for at in range(len(boxes))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of the bundles, and its engine, which `run` runs, wherever that is."""

    bundle: Bundle
    engine: Engine
    run: Callable[[Feeds], Feeds]

    @classmethod
    def open(cls, folder: Path, name: str, threads: int, opening: ExitStack) -> Part:
        """One of a folder, its engine loaded here."""
        bundle = Bundle.open(folder / name)
        if bundle.model.task != TASK_OF[name]:
            raise InputError(f"{folder / name} is for {bundle.model.task}; expected {TASK_OF[name]}")
        engine = local_engine(bundle)
        session = opening.enter_context(closing(backend(engine.backend).open(engine, threads=threads)))
        return cls(bundle=bundle, engine=engine, run=session.run)

    @property
    def profile(self) -> Profile:
        """The sizes that the engine takes."""
        return self.engine.plan.profile


def _quad(box: Corners, scan: Scan) -> Quad:
    """The corners as values, on the page."""
    inside = np.clip(box, 0, [scan.width, scan.height])
    first, second, third, last = ((float(x), float(y)) for x, y in inside)
    return first, second, third, last
