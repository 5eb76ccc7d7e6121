"""A user's data: files of texts, images and tables, with labels or without, read whole or refused by line."""

from alula.data.arrays import KEPT_BYTES, Loaded, read_feeds, write_arrays
from alula.data.dataset import Dataset, Example, Label
from alula.data.reading import ENDINGS, read
from alula.data.rows import MAX_BYTES

__all__ = [
    "ENDINGS",
    "KEPT_BYTES",
    "MAX_BYTES",
    "Dataset",
    "Example",
    "Label",
    "Loaded",
    "read",
    "read_feeds",
    "write_arrays",
]
