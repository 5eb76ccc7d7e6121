"""Pages in held-out fonts, kept as files: whoever measures has neither the fonts nor the time to draw them.

    python -m training.keep --fonts training/build/fonts -o examples/pages/held

Pages that judge are written without what wears them: noise would make them seven times as large, and is added again
when they are opened.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from training.fonts import Fonts
from training.render import HELD_SEED, LARGE, Page, render, worn

INDEX = "pages.jsonl"
PAGES, STEP = 84, 5
"""How many: every fifth of the 420 that `evaluate.py` judges by, so that all shapes are among them."""


def kept(folder: Path) -> Iterator[Page]:
    """The pages in a folder, worn, the same every time; their lines are not known."""
    for row in map(json.loads, (folder / INDEX).read_text("utf-8").splitlines()):
        with Image.open(folder / row["file"]) as picture:
            levels = worn(random.Random(f"wear:{row['number']}"), picture)
        yield Page(
            number=row["number"],
            task=row["task"],
            prompt=row["prompt"],
            answer=row["answer"],
            levels=levels,
            paper=tuple(row["paper"]),
            ink=tuple(row["ink"]),
            lines=(),
            shape=(levels.shape[1], levels.shape[0]),
        )


def keep(fonts: Path, folder: Path, count: int = PAGES) -> None:
    """Draw so many of the pages that judge, and write what they are beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = Fonts.open(fonts, held=True)
    with (folder / INDEX).open("w", encoding="utf-8") as rows:
        for number in range(0, count * STEP, STEP):
            shape = LARGE[number % len(LARGE)]
            page = render(number, seed=HELD_SEED, fonts=opened, shape=shape, wear=False)
            file = f"{number:03d}-{page.task}.png"
            Image.fromarray(page.levels).save(folder / file, optimize=True)
            said = {"number": number, "task": page.task, "prompt": page.prompt, "answer": page.answer}
            row = {"file": file, **said, "paper": page.paper, "ink": page.ink}
            rows.write(json.dumps(row, ensure_ascii=False) + "\n")


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    keep(given.fonts, given.output)


if __name__ == "__main__":
    main()
