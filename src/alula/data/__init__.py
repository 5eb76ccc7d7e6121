"""A user's data: files of texts, with labels or without, read whole or refused by line."""

from alula.data.dataset import Dataset, Example, Label
from alula.data.reading import ENDINGS, MAX_BYTES, read

__all__ = ["ENDINGS", "MAX_BYTES", "Dataset", "Example", "Label", "read"]
