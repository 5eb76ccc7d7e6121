"""Text in, rows of ids out; images in, pixels out; arrays in, answers out. Knows no engine and no server."""

from alula.codecs.answers import Answer, answers
from alula.codecs.classes import Scored, classes, relevance
from alula.codecs.entities import Entity, TokenLabel, entities, token_labels
from alula.codecs.images import ImageCodec, Pixels, each_image
from alula.codecs.pictures import decode
from alula.codecs.recognition import Line, RecognitionCodec
from alula.codecs.rows import Row, collate, fit, row_outputs, within
from alula.codecs.text import TextCodec
from alula.codecs.vectors import vectors

__all__ = [
    "Answer",
    "Entity",
    "ImageCodec",
    "Line",
    "Pixels",
    "RecognitionCodec",
    "Row",
    "Scored",
    "TextCodec",
    "TokenLabel",
    "answers",
    "classes",
    "collate",
    "decode",
    "each_image",
    "entities",
    "fit",
    "relevance",
    "row_outputs",
    "token_labels",
    "vectors",
    "within",
]
