"""Pictures of a video at even times, decoded by PyAV as far as they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from alula.core.errors import InputError, MissingExtraError
from alula.documents.values import Notice, Pixels

EVERY_S = 0.5
"""Seconds between two pictures: subtitles are shown for one at least."""

_AHEAD_S = 10.0
"""What is further ahead is sought, and what is nearer decoded up to."""

_LATE_S = 1.0
"""By how much the length that is stated may be more than what is shown: sound often ends after the pictures."""

_STILLS = (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"avif", b"avis")
_HEADS = (b"\x1a\x45\xdf\xa3", b"FLV\x01", b"\x00\x00\x01\xba", b"\x30\x26\xb2\x75")
"""Of Matroska and WebM, Flash, MPEG and Windows Media."""

_PACKET = 188
"""Bytes of a packet of an MPEG transport stream, each of which begins with a G."""


def is_video(head: bytes) -> bool:
    """Whether a file that begins so is a video, by the marks of its kind."""
    if head[4:8] == b"ftyp":
        return head[8:12] not in _STILLS
    if head[:4] == b"RIFF":
        return head[8:12] == b"AVI "
    stream = len(head) > 2 * _PACKET and all(head[at : at + 1] == b"G" for at in (0, _PACKET, 2 * _PACKET))
    return stream or head.startswith(_HEADS)


class Video:
    """An open video, of which picture n is the one shown at n times `every_s` seconds. Not thread-safe. Close it.

    Pictures asked for in order are decoded once.
    """

    def __init__(self, file: Path, *, every_s: float = EVERY_S, most_pixels: int = 1 << 23) -> None:
        self.name, self.every_s = str(file), every_s
        self._most_pixels = most_pixels
        self._container: Any = _opened(file)
        with _translated(f"{self.name} cannot be read as a video"):
            if not self._container.streams.video:
                self.close()
                raise InputError(f"{self.name} has no pictures; expected a video")
            self._stream: Any = self._container.streams.video[0]
            self._stream.thread_type = "AUTO"
            self.seconds = self._length()
        self._frames: Iterator[Any] | None = None
        self._now: tuple[float, Any] | None = None
        self._next: tuple[float, Any] | None = None
        self._ends: float | None = None

    @property
    def pictures(self) -> int:
        """How many there are, by the length that the file states."""
        return max(1, math.ceil(self.seconds / self.every_s))

    def span(self, index: int) -> tuple[float, float]:
        """The seconds that picture `index` stands for."""
        return index * self.every_s, max(index * self.every_s, min((index + 1) * self.every_s, self.seconds))

    def oddities(self, index: int) -> tuple[Notice, ...]:
        """That picture `index`, which was taken, is the last one again since nothing is behind that."""
        if self._ends is None or index * self.every_s <= self._ends + _LATE_S:
            return ()
        said = f"the pictures end at {self._ends:.2f} s, though the file states {self.seconds:.2f} s: it may be cut off"
        return (Notice(code="repaired", message=said),)

    def picture(self, index: int) -> Pixels:
        """What is shown at that time, upright, made smaller where it has too many pixels."""
        with _translated(f"{self.name} cannot be decoded at {index * self.every_s:.2f} s"):
            frame = self._at(index * self.every_s)
            share = min(1.0, math.sqrt(self._most_pixels / (frame.width * frame.height)))
            pixels = frame.to_ndarray(
                format="rgb24",
                width=max(1, int(frame.width * share)),
                height=max(1, int(frame.height * share)),
            )
            # The file says by how much it is to be turned to the left.
            return np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4))

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        self._container.close()

    def _at(self, seconds: float) -> Any:
        """The last frame that begins no later; the first where none does."""
        if (
            self._frames is None
            or self._now is None
            or seconds < self._now[0]
            or seconds > self._now[0] + _AHEAD_S
        ):
            self._seek(seconds)
        while self._next is not None and self._next[0] <= seconds + 1e-6:
            self._now, self._next = self._next, self._following()
        assert self._now is not None
        return self._now[1]

    def _seek(self, seconds: float) -> None:
        begun = self._stream.start_time or 0
        self._container.seek(begun + int(seconds / self._stream.time_base), stream=self._stream)
        self._frames = self._container.decode(self._stream)
        self._now = self._following()
        if self._now is None:
            raise InputError(f"{self.name} has no picture at {seconds:.2f} s")
        self._next = self._following()

    def _following(self) -> tuple[float, Any] | None:
        """The next frame and when it begins, counted from the first."""
        assert self._frames is not None
        frame = next(self._frames, None)
        if frame is None:
            if self._next is not None:
                begun, last = self._next
                self._ends = begun + float((last.duration or 0) * self._stream.time_base)
            return None
        begun = (self._stream.start_time or 0) * self._stream.time_base
        return float((frame.time or 0.0) - begun), frame

    def _length(self) -> float:
        stream, container = self._stream, self._container
        if stream.duration and stream.time_base:
            return float(stream.duration * stream.time_base)
        if container.duration:
            return float(container.duration) / 1_000_000
        raise InputError(
            f"{self.name} does not say how long it is; write it anew, such as with ffmpeg -c copy"
        )


def _opened(file: Path) -> Any:
    try:
        import av  # noqa: PLC0415 - documents are read without it
    except ImportError as error:
        raise MissingExtraError("reading videos", "video") from error
    with _translated(f"{file} cannot be read as a video"):
        return av.open(str(file), mode="r", metadata_errors="replace")


@contextmanager
def _translated(said: str) -> Iterator[None]:
    import av  # noqa: PLC0415

    try:
        yield
    except av.FFmpegError as error:
        raise InputError(f"{said}: {error.strerror or error}") from error
