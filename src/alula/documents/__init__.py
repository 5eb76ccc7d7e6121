"""Documents as values: pages before and after they are read, and the files they come from and go to."""

from __future__ import annotations

from alula.documents.values import (
    TASKS,
    Block,
    BlockKind,
    Code,
    Document,
    Notice,
    Page,
    Pixels,
    Point,
    Quad,
    Scan,
    Table,
    Task,
    rectangle,
)

__all__ = [
    "TASKS",
    "Block",
    "BlockKind",
    "Code",
    "Document",
    "Notice",
    "Page",
    "Pixels",
    "Point",
    "Quad",
    "Scan",
    "Table",
    "Task",
    "rectangle",
]
