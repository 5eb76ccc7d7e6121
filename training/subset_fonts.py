"""Cut the fonts of `fonts.py` down to the characters that pages have, so that they travel.

python -m training.subset_fonts --fonts /usr/share/fonts -o training/build/fonts
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTCollection, TTFont

from training.characters import CHINESE, LATIN, PUNCTUATION, SIGNS
from training.fonts import FACES, Face, write_index

_ENDINGS = (".ttf", ".otf", ".ttc")


def main() -> None:
    """Write one small file for each face that is there, and the index of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, nargs="+", default=[Path("/usr/share/fonts")])
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    found = {
        path.stem: path
        for folder in given.fonts
        for path in sorted(folder.rglob("*"))
        if path.suffix in _ENDINGS
    }
    given.output.mkdir(parents=True, exist_ok=True)
    files: dict[str, Face] = {}
    for face in FACES:
        if face.name not in found:
            print(f"{face.name}: not here; it is in {face.package}")
        elif file := cut(face, found[face.name], given.output):
            files[file.name] = face
    write_index(given.output, files)
    size = sum(path.stat().st_size for path in given.output.iterdir())
    print(f"{len(files)} of {len(FACES)} faces, {size / 2**20:.1f} MiB in {given.output}")


def cut(face: Face, source: Path, to: Path) -> Path | None:
    """The file with only our characters, or None, said why, when the face lacks one of them."""
    font = _opened(source, face.index)
    wanted = LATIN + SIGNS + (PUNCTUATION + CHINESE if face.chinese else "")
    missing = {character for character in wanted if ord(character) not in font.getBestCmap()}
    if missing:
        print(f"{face.name}: left out, has no {''.join(sorted(missing))}")
        return None
    options = subset.Options(layout_features=["kern"], hinting=False, notdef_outline=True)
    cutter = subset.Subsetter(options)
    cutter.populate(text=wanted)
    cutter.subset(font)
    file = to / (face.name + (".otf" if "CFF " in font else ".ttf"))
    font.save(file)
    return file


def _opened(source: Path, index: int) -> TTFont:
    if source.suffix == ".ttc":
        return TTCollection(str(source)).fonts[index]
    return TTFont(str(source))


if __name__ == "__main__":
    main()
