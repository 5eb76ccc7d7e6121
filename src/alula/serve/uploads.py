"""Images in requests: forms, bare bodies, and base64 in JSON."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import Any
from urllib.parse import parse_qsl

from alula.core.errors import InputError
from alula.serve.deadlines import FIELD
from alula.serve.errors import Refused
from alula.serve.records import current

NUMBERS = ("top_k", "max_tokens")
"""Fields that are numbers; in a form and behind a question mark all are texts."""

SECONDS = (FIELD,)
"""Fields that are numbers with a fraction, likewise."""

FLAGS = ("pictures",)
"""Fields that are true or false, likewise."""

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)

MOST_PARTS = 1_024
MOST_HEADER_BYTES = 8_192


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """The bytes of one image, and what errors call it."""

    content: bytes
    name: str


def is_upload(content_type: str) -> bool:
    """Whether a body of this type holds images as they are, not as JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in {"multipart/form-data", "application/octet-stream", "application/pdf"} or kind.startswith(
        "image/"
    )


def fields_of(body: bytes, content_type: str, query: str, *, wanted: str = "an image") -> dict[str, Any]:
    """The fields of a body with images, as though they stood in a JSON object; `inputs` holds uploads."""
    fields = dict(parse_qsl(query, keep_blank_values=True))
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        texts, uploads = _form(body, content_type, wanted)
        current().holds(*(upload.content for upload in uploads))
        fields |= texts
    else:
        if not body:
            raise InputError(f"the body is empty; expected {wanted}")
        uploads = [Upload(content=body, name="the document" if kind == "application/pdf" else "the image")]
    if "inputs" in fields:
        raise InputError("inputs is a text in a form; expected a file")
    read = {name: _read(name, text) for name, text in fields.items()}
    return {**read, "inputs": uploads[0] if len(uploads) == 1 else uploads}


def are_in(value: Any) -> bool:
    """Whether `inputs` came as uploads."""
    return isinstance(value, Upload) or (isinstance(value, list) and any(map(are_in, value)))


def images(value: Any) -> tuple[list[Upload], bool]:
    """The images of `inputs`, and whether they are a batch: uploads, base64, data URLs, or a list of them."""
    if isinstance(value, list):
        return [_image(item, f"inputs[{at}]") for at, item in enumerate(value)], True
    return [_image(value, "inputs")], False


def image_at(url: str, where: str) -> Upload:
    """The image in a data URL, or in base64 alone."""
    return _image(url, where)


def _image(value: Any, where: str) -> Upload:
    if isinstance(value, Upload):
        return value
    if not isinstance(value, str):
        raise InputError(f"{where} is not an image; expected base64, a data URL or an upload")
    text = value
    if value[:5].lower() == "data:":
        head, comma, text = value.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InputError(f"{where} is a data URL without base64; expected data:image/png;base64,...")
    elif "://" in value[:16]:
        raise InputError(f"{where} is a URL, and this server fetches nothing; send the image itself")
    try:
        # Lines may be broken, as in mail; anything else that is no base64 is a mistake.
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{where} is not base64: {error}") from error
    if not content:
        raise InputError(f"{where} is empty; expected an image")
    return Upload(content=content, name=where)


def _read(name: str, text: str) -> Any:
    if name in NUMBERS:
        return _number(name, text)
    if name in SECONDS:
        return _seconds(name, text)
    return _flag(name, text) if name in FLAGS else text


def _flag(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise InputError(f"{name} is {text[:20]!r}, expected true or false")
    return text == "true"


def _seconds(name: str, text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise InputError(f"{name} is {text[:20]!r}, expected seconds")
    return float(text)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"{name} is {text[:20]!r}, expected a whole number")
    return int(text)


def _form(body: bytes, content_type: str, wanted: str) -> tuple[Mapping[str, str], list[Upload]]:
    """Texts by their names, and files in their order, whatever they are called."""
    texts: dict[str, str] = {}
    uploads: list[Upload] = []
    for headers, content in _parts(body, _boundary(content_type)):
        name = headers.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name:
            raise InputError("a part of the form has no name")
        if (file := headers.get_filename()) is not None:
            if not content:
                raise InputError(f"{file or name} is empty; expected {wanted}")
            uploads.append(Upload(content=content, name=file or name))
        elif name in texts:
            raise InputError(f"{name} is in the form twice")
        else:
            try:
                texts[name] = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{name} is not UTF-8; a file needs a filename in its part") from error
    return texts, uploads


def _boundary(content_type: str) -> bytes:
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_boundary()
    if not boundary:
        raise InputError("the form has no boundary in its content type")
    return boundary.encode("latin-1", "replace")


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[Message, bytes]]:
    """Headers and content of each part; the form must end with its boundary, or some of it is missing."""
    line = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(line, MOST_PARTS + 1)
    if len(pieces) > MOST_PARTS + 1:
        raise Refused(f"a form of more than {MOST_PARTS} parts", status=413)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InputError("the form does not end with its boundary; expected multipart/form-data in full")
    for piece in pieces[1:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        if not blank or len(head) > MOST_HEADER_BYTES:
            raise InputError("a part of the form has no headers that can be read")
        yield HeaderParser().parsestr(head.lstrip(b" \t\r\n").decode("utf-8", "replace")), content
