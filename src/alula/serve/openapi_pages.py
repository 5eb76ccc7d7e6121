"""What the routes that read pages take, for the description of the endpoints."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from alula.documents import TASKS
from alula.ocr.reader import MAX_TOKENS

TEXT = {"type": "string"}

COMMON: dict[str, dict[str, Any]] = {
    "inputs": {
        **TEXT,
        "description": "the file in base64 or as a data URL; or it is the one file of a form, or the body itself",
    },
    "task": {"enum": list(TASKS), "default": "text", "description": "what to read"},
    "fields": {
        "oneOf": [TEXT, {"type": "array", "items": TEXT}],
        "description": 'with fields: the keys, ["name", "date"] or "name,date"',
    },
    "to": {"enum": ["en", "zh"], "description": "with translate: the language"},
    "question": {**TEXT, "description": "with ask: the question"},
    "prompt": {
        "enum": ["en", "zh"],
        "default": "en",
        "description": "the language of the model's own prompt",
    },
    "max_tokens": {
        "type": "integer",
        "minimum": 1,
        "default": MAX_TOKENS,
        "description": "of a page's answer at most",
    },
    "model": {**TEXT, "description": "which of the served models; by default the first that reads pages"},
}

PAGE: dict[str, dict[str, Any]] = {
    **COMMON,
    "format": {
        "enum": ["json", "text", "md", "html"],
        "description": "of the answer; left out, what Accept would rather have, else json",
    },
}

DOCUMENT: dict[str, dict[str, Any]] = {
    **COMMON,
    "pages": {**TEXT, "description": "which pages, such as 1-3,7,10-; by default all"},
    "password": {**TEXT, "description": "of a locked PDF"},
    "pictures": {
        "type": "boolean",
        "default": False,
        "description": "before each page a line with its picture, a JPEG as a data URL",
    },
}


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _white(side: int) -> str:
    """A white page as a PNG in base64."""
    rows = zlib.compress((b"\0" + b"\xff" * side) * side)
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")
    return base64.b64encode(file).decode("ascii")


EXAMPLE: dict[str, Any] = {"inputs": _white(64), "task": "text", "max_tokens": 16}
