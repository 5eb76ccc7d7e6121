"""Fonts that pages are rendered with, where they come from, and which are kept for the pages that judge."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

INDEX = "fonts.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Face:
    """One font file: which of Debian's packages has it, its place in a collection, and what it is for."""

    name: str
    package: str
    licence: str
    index: int = 0
    chinese: bool = False
    held: bool = False
    """Kept from training, for pages that judge."""


def _faces(package: str, licence: str, names: str, *, held: bool = False) -> list[Face]:
    return [Face(name=name, package=package, licence=licence, held=held) for name in names.split()]


FACES: tuple[Face, ...] = (
    *_faces(
        "fonts-dejavu-core fonts-dejavu-extra",
        "Bitstream Vera",
        "DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSansCondensed DejaVuSansMono DejaVuSerif DejaVuSerif-Bold "
        "DejaVuSerif-Italic DejaVuSansMono-Bold DejaVuSerifCondensed",
    ),
    *_faces(
        "fonts-liberation2",
        "OFL-1.1",
        "LiberationSans-Regular LiberationSans-Bold LiberationSans-Italic LiberationSerif-Regular LiberationSerif-Bold "
        "LiberationSerif-Italic LiberationMono-Regular LiberationMono-Bold",
    ),
    *_faces("fonts-liberation", "GPL-2 with font exception", "LiberationSansNarrow-Regular"),
    *_faces("fonts-crosextra-carlito", "OFL-1.1", "Carlito-Regular Carlito-Bold Carlito-Italic"),
    *_faces("fonts-crosextra-caladea", "Apache-2.0", "Caladea-Regular Caladea-Bold Caladea-Italic"),
    *_faces("fonts-lato", "OFL-1.1", "Lato-Regular Lato-Bold Lato-Light Lato-Italic"),
    *_faces(
        "fonts-roboto-unhinted",
        "Apache-2.0",
        "Roboto-Regular Roboto-Bold Roboto-Light RobotoCondensed-Regular",
    ),
    *_faces("fonts-roboto-slab", "Apache-2.0", "RobotoSlab-Regular RobotoSlab-Bold"),
    *_faces(
        "fonts-freefont-ttf",
        "GPL-3 with font exception",
        "FreeSans FreeSansBold FreeSerif FreeSerifBold FreeSerifItalic FreeMono FreeMonoBold",
    ),
    *_faces("fonts-b612", "EPL-1.0", "B612-Regular B612-Bold B612Mono-Regular"),
    *_faces("fonts-cantarell", "OFL-1.1", "Cantarell-Regular Cantarell-Bold"),
    *_faces("fonts-inter", "OFL-1.1", "Inter-Regular Inter-Medium Inter-Bold Inter-Italic"),
    *_faces("fonts-ebgaramond", "OFL-1.1", "EBGaramond12-Regular EBGaramond12-Italic"),
    *_faces(
        "fonts-linuxlibertine", "OFL-1.1", "LinLibertine_R LinLibertine_RB LinLibertine_RI LinBiolinum_R"
    ),
    *_faces("fonts-inconsolata", "OFL-1.1", "Inconsolata"),
    *_faces("fonts-quicksand", "OFL-1.1", "Quicksand-Regular Quicksand-Bold"),
    *_faces("fonts-go", "BSD-3-Clause", "Go-Regular Go-Bold Go-Mono Go-Italic"),
    *_faces("fonts-sil-andika", "OFL-1.1", "Andika-Regular Andika-Bold"),
    *_faces("fonts-sil-gentiumplus", "OFL-1.1", "GentiumPlus-Regular GentiumPlus-Bold GentiumPlus-Italic"),
    *_faces("fonts-firacode", "OFL-1.1", "FiraCode-Regular FiraCode-Medium"),
    *_faces("fonts-play", "OFL-1.1", "Play-Regular Play-Bold"),
    *_faces("fonts-junicode", "OFL-1.1", "JunicodeTwoBeta-Regular JunicodeTwoBeta-Medium"),
    *_faces("fonts-noto-mono", "OFL-1.1", "NotoSansMono-Regular NotoSansMono-Bold"),
    *_faces("fonts-open-sans", "Apache-2.0", "OpenSans-Regular OpenSans-Semibold OpenSans-Italic", held=True),
    *_faces("fonts-sil-charis", "OFL-1.1", "CharisSIL-Regular CharisSIL-Bold", held=True),
    *_faces("fonts-jetbrains-mono", "OFL-1.1", "JetBrainsMono-Regular", held=True),
    *_faces("fonts-karla", "OFL-1.1", "Karla-Regular", held=True),
    Face(name="NotoSansCJK-Regular", package="fonts-noto-cjk", licence="OFL-1.1", index=2, chinese=True),
    Face(name="NotoSansCJK-Bold", package="fonts-noto-cjk", licence="OFL-1.1", index=2, chinese=True),
    Face(name="NotoSerifCJK-Regular", package="fonts-noto-cjk", licence="OFL-1.1", index=2, chinese=True),
    Face(name="NotoSerifCJK-Bold", package="fonts-noto-cjk", licence="OFL-1.1", index=2, chinese=True),
    Face(name="wqy-zenhei", package="fonts-wqy-zenhei", licence="GPL-2 with font exception", chinese=True),
    Face(name="uming", package="fonts-arphic-uming", licence="Arphic Public License", chinese=True),
    Face(name="ukai", package="fonts-arphic-ukai", licence="Arphic Public License", chinese=True),
    Face(
        name="wqy-microhei",
        package="fonts-wqy-microhei",
        licence="Apache-2.0 or GPL-3 with font exception",
        chinese=True,
        held=True,
    ),
    Face(name="LXGWWenKai-Regular", package="fonts-lxgw-wenkai", licence="OFL-1.1", chinese=True, held=True),
)


def write_index(folder: Path, files: dict[str, Face]) -> None:
    """Say beside the subset files which face each one is."""
    rows = {file: asdict(face) for file, face in sorted(files.items())}
    (folder / INDEX).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fonts:
    """What a renderer draws from: files of Latin and of Chinese faces, either those to learn or those held out."""

    latin: tuple[str, ...]
    chinese: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, *, held: bool) -> Fonts:
        """Read the index that `subset_fonts.py` left; says how to make it when it is not there."""
        if not (folder / INDEX).is_file():
            raise FileNotFoundError(
                f"{folder} has no {INDEX}: run `python -m training.subset_fonts -o {folder}` first"
            )
        faces = {file: Face(**row) for file, row in json.loads((folder / INDEX).read_text("utf-8")).items()}
        chosen = {chinese: [] for chinese in (False, True)}  # type: dict[bool, list[str]]
        for file, face in faces.items():
            if face.held == held:
                chosen[face.chinese].append(str(folder / file))
        return cls(latin=tuple(chosen[False]), chinese=tuple(chosen[True]))


@lru_cache(maxsize=3000)
def sized(file: str, size: int) -> ImageFont.FreeTypeFont:
    """A font at a size in pixels, laid out without shaping: what is drawn is the characters one by one."""
    return ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)
