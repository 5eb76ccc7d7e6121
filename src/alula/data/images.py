"""The image of a row: a file or its bytes, known by how it begins and never decoded here."""

from __future__ import annotations

import stat
from pathlib import Path

from alula.data.rows import BadRow, Fields, listed, mistyped, shown, words

IMAGES = ("image", "file_name")
"""The names that an image goes by; a row uses one of them."""

BEGINNINGS = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
}
"""How files of a format begin; WebP is known by two places."""

FORMATS = ", ".join((*BEGINNINGS, "WebP"))

MAX_IMAGE_BYTES = 1 << 26
"""64 MiB: a photograph of 100 megapixels has less."""

MAX_IMAGES = 100_000
"""Each is opened and digested before anything is built with it."""

_HEAD = 12


def image_of(fields: Fields, base: Path) -> Path | bytes:
    """The image that a row names or holds; names are relative to `base`."""
    given = [name for name in IMAGES if fields.get(name) is not None]
    if not given:
        raise BadRow(f"has no image: expected a field of {', '.join(IMAGES)}; it has {listed(fields)}")
    name = given[0]
    value = fields[name]
    if len(given) > 1 and isinstance(value, str):
        raise BadRow(f"has the fields {' and '.join(given)}, which name the same thing; expected one of them")
    if isinstance(value, dict):
        # What datasets writes: the bytes, and the name of the file they came from.
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if value is None:
            raise BadRow(f"field {name!r} has neither bytes nor a path")
    if isinstance(value, bytes):
        return _held(value, name)
    if isinstance(value, Path):
        return _file(value, "")
    if not isinstance(value, str):
        raise mistyped(name, value, "the path of an image")
    path = base / words(value, name)
    return _file(path, f"image {shown(path)} ")


def _held(content: bytes, name: str) -> bytes:
    if not content:
        raise BadRow(f"field {name!r} is empty, expected an image")
    _refuse_large(len(content), f"field {name!r} ")
    _refuse_unknown(content[:_HEAD], f"field {name!r} ")
    return content


def _file(path: Path, subject: str) -> Path:
    """The file, if an image can lie in it; `subject` begins the messages and is empty where the row is named by it."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadRow(f"{subject}is no ordinary file, expected an image")
        if not found.st_size:
            raise BadRow(f"{subject}is empty, expected an image")
        _refuse_large(found.st_size, subject)
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise BadRow(f"{subject}does not exist") from None
    except OSError as error:
        raise BadRow(f"{subject}cannot be read: {error.strerror}") from None
    _refuse_unknown(head, subject)
    return path


def _refuse_large(size: int, subject: str) -> None:
    if size > MAX_IMAGE_BYTES:
        raise BadRow(f"{subject}has {size} bytes, and an image may have {MAX_IMAGE_BYTES}")


def _refuse_unknown(head: bytes, subject: str) -> None:
    known = any(head.startswith(starts) for starts in BEGINNINGS.values())
    if not known and not (head.startswith(b"RIFF") and head[8:12] == b"WEBP"):
        raise BadRow(f"{subject}begins with {head[:8].hex(' ')}, which is no image of {FORMATS}")
