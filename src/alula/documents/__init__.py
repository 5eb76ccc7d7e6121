"""Documents as values: pages before and after they are read, and the files they come from and go to."""

from __future__ import annotations

from alula.documents.formats import (
    TEXT_FORMATS,
    TextFormat,
    document_to_json,
    page_to_json,
    published_schema,
    written,
)
from alula.documents.quality import Quality, measured, notices_of, printed, without_specks
from alula.documents.searchable import SearchablePdf
from alula.documents.tables import tables_in, to_html, to_rows
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
    "TEXT_FORMATS",
    "Block",
    "BlockKind",
    "Code",
    "Document",
    "Notice",
    "Page",
    "Pixels",
    "Point",
    "Quad",
    "Quality",
    "Scan",
    "SearchablePdf",
    "Table",
    "Task",
    "TextFormat",
    "document_to_json",
    "measured",
    "notices_of",
    "page_to_json",
    "printed",
    "published_schema",
    "rectangle",
    "tables_in",
    "to_html",
    "to_rows",
    "without_specks",
    "written",
]
