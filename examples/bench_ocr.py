"""A pipeline of pages beside RapidOCR with the same models, and Tesseract where there is one, page by page in turns.

Every page is drawn here with its text; the error rate counts characters without spaces, over the page in the order that
it was read. What is timed begins with the page's file and ends with its text. RapidOCR runs in an environment of its
own (pip install rapidocr==3.10.0 onnxruntime), which `--rapidocr` names the interpreter of.

    alula build rapidocr -o pages
    python examples/bench_ocr.py pages --rapidocr PYTHON --fonts FOLDER --seeds 100-105
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
from ocr_pages import KINDS, Fonts, TruePage, characters, draw
from PIL import Image

from alula.documents import Scan
from alula.ocr import Ask, Reader, open_reader
from alula.verify.characters import edit_distance

Read = Callable[[Path], tuple[str, float, float]]
"""A page's file to its text, and the seconds that took: by the clock, and of processors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What one contender made of one page."""

    who: str
    kind: str
    wrong: int
    characters: int
    seconds: float
    busy: float


def main() -> int:
    """Draw pages, let each contender read each, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pipelines", nargs="+", type=Path, help="folders that alula build rapidocr made")
    parser.add_argument("--rapidocr", help="an interpreter that has rapidocr and onnxruntime")
    parser.add_argument(
        "--fonts", action="append", type=Path, default=[], help="folders; /usr/share/fonts too"
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", default="100-103", help="first-last; those below 100 were tuned on")
    parser.add_argument("--no-tesseract", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    first, last = (int(number) for number in given.seeds.split("-"))
    fonts = Fonts([Path("/usr/share/fonts"), *given.fonts])
    pages = [draw(kind, seed, fonts) for seed in range(first, last + 1) for kind in given.kinds.split(",")]
    with contenders(
        given.pipelines, given.rapidocr, given.threads, tesseract=not given.no_tesseract
    ) as reads:
        told = []
        for each in turns(pages, reads):
            told.append(each)
            wrong = f"{each.wrong} of {each.characters} wrong"
            print(
                f"{each.kind} {each.who}: {wrong}, {each.seconds:.2f} s, {each.busy:.2f} s", file=sys.stderr
            )
    show(told, list(reads), given.kinds.split(","))
    return 0


def turns(pages: Sequence[TruePage], reads: dict[str, Read]) -> Iterator[Told]:
    """Each page to each contender, whose order goes round; one page first that is not counted."""
    with TemporaryDirectory() as folder:
        names = list(reads)
        for at, page in enumerate([pages[0], *pages]):
            file = Path(folder) / f"{page.name}.png"
            page.image.save(file, compress_level=1)
            wanted = characters(page.text)
            for name in (*names[at % len(names) :], *names[: at % len(names)]):
                text, seconds, busy = reads[name](file)
                if at:
                    wrong = edit_distance(wanted, characters(text))
                    kind = page.name.rsplit("-", 1)[0]
                    yield Told(
                        who=name,
                        kind=kind,
                        wrong=wrong,
                        characters=len(wanted),
                        seconds=seconds,
                        busy=busy,
                    )
            file.unlink()


@contextmanager
def contenders(
    pipelines: Sequence[Path], rapidocr: str | None, threads: int, *, tesseract: bool
) -> Iterator[dict[str, Read]]:
    """Who reads, by name."""
    reads: dict[str, Read] = {}
    with ExitStack() as opened:
        for folder in pipelines:
            reads[f"alula {folder.name}"] = _ours(
                opened.enter_context(closing(open_reader(folder, threads=threads)))
            )
        if rapidocr:
            reads["RapidOCR"] = opened.enter_context(closing(_Worker(rapidocr, threads))).read
        if tesseract and (program := shutil.which("tesseract")):
            reads["Tesseract"] = _tesseract(program, threads)
        yield reads


def _ours(reader: Reader) -> Read:
    def read(file: Path) -> tuple[str, float, float]:
        start, begun = perf_counter(), process_time()
        pixels = np.asarray(Image.open(file).convert("RGB"))
        [page] = reader.read([Scan(source=file.name, index=0, pixels=pixels)], Ask(task="text"))
        return page.text, perf_counter() - start, process_time() - begun

    return read


class _Worker:
    """RapidOCR in its own process."""

    def __init__(self, python: str, threads: int) -> None:
        command = [python, str(Path(__file__).with_name("ocr_worker.py")), str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._told()

    def read(self, file: Path) -> tuple[str, float, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        told = self._told()
        return str(told["text"]), float(told["seconds"]), float(told["busy"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def _tesseract(program: str, threads: int) -> Read:
    def read(file: Path) -> tuple[str, float, float]:
        start, begun = perf_counter(), _of_children()
        environment = {**os.environ, "OMP_THREAD_LIMIT": str(threads)}
        done = subprocess.run(
            [program, str(file), "-", "-l", "eng+chi_sim", "--psm", "6"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return done.stdout, perf_counter() - start, _of_children() - begun

    return read


def _of_children() -> float:
    """Seconds that processes which have ended took of processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(told: Sequence[Told], who: Sequence[str], kinds: Sequence[str]) -> None:
    """Error rates and seconds per kind; all but columns together, whose order is another question."""
    print(
        "| pages | "
        + " | ".join(f"{name}: wrong, % | worst page | s a page | of processors" for name in who)
        + " |"
    )
    print("|---" * (1 + 4 * len(who)) + "|")
    level = [kind for kind in kinds if kind != "columns"]
    for label, group in [*((kind, [kind]) for kind in kinds), ("all but columns", level)]:
        cells = []
        for name in who:
            mine = [each for each in told if each.who == name and each.kind in group]
            rate = 100 * sum(each.wrong for each in mine) / sum(each.characters for each in mine)
            worst = 100 * max(each.wrong / each.characters for each in mine)
            seconds = sorted(each.seconds for each in mine)
            spread = f"{median(seconds):.2f} ({seconds[0]:.2f}-{seconds[-1]:.2f})"
            busy = median(each.busy for each in mine)
            cells.append(f"{rate:.2f} | {worst:.2f} | {spread} | {busy:.2f}")
        print(f"| {label} | " + " | ".join(cells) + " |")
    for name in who[1:]:
        for what, spent in (("by the clock", "seconds"), ("of processors", "busy")):
            ours, theirs = (
                [getattr(each, spent) for each in told if each.who == one] for one in (who[0], name)
            )
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            low, high = np.percentile(ratios, [10, 90])
            times = (
                f"{median(ratios):.2f} times as fast as {name} (10 to 90 % of pages: {low:.2f}-{high:.2f})"
            )
            print(f"{who[0]}, {what}: {times}, {len(ratios)} pages")


if __name__ == "__main__":
    sys.exit(main())
