"""A user's data: files of texts, images and tables, with labels or without, read whole or refused by line."""

from alula.data.arrays import loaded, read_feeds, write_arrays
from alula.data.dataset import Dataset, Example, Label
from alula.data.kept import Kept
from alula.data.reading import ENDINGS, read
from alula.data.rows import MAX_BYTES

__all__ = [
    "ENDINGS",
    "MAX_BYTES",
    "Dataset",
    "Example",
    "Kept",
    "Label",
    "loaded",
    "read",
    "read_feeds",
    "write_arrays",
]
