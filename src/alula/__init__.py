"""From a HuggingFace checkpoint to a proved, measured and served engine."""

__version__ = "0.1.0"
