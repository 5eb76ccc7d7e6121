"""Pages read by a model: what a reader is, the readers there are, and how files go through one."""

from __future__ import annotations

from alula.ocr.opening import READERS, ReaderKind, open_reader
from alula.ocr.reader import Ask, Reader, check

__all__ = ["READERS", "Ask", "Reader", "ReaderKind", "check", "open_reader"]
