"""Text in, rows of ids out; images in, pixels out; arrays in, answers out. Knows no engine and no server."""

from alula.codecs.answers import Answer, answers
from alula.codecs.by_task import ImagesCodec, images_codec
from alula.codecs.chat import ChatTemplate
from alula.codecs.classes import Scored, classes, relevance
from alula.codecs.detection import Box, DetectionCodec, Detector, Page, draw_boxes
from alula.codecs.entities import Entity, TokenLabel, entities, token_labels
from alula.codecs.images import ImageCodec, Pixels, each_image
from alula.codecs.messages import ImagePart, Message, Parts, messages_of, tools_of
from alula.codecs.patches import Patcher, Patches, refuse_sliver
from alula.codecs.pictures import (
    MOST_PIXELS,
    Sheet,
    captioned,
    count_sheets,
    decode,
    decode_sheet,
    outlined,
    pixels_in,
    straightened,
    to_jpeg,
)
from alula.codecs.places import places_of
from alula.codecs.raster import Raster, blue_first
from alula.codecs.recognition import Line, RecognitionCodec
from alula.codecs.rows import Row, collate, fit, padded_lengths, row_outputs, within
from alula.codecs.seen import Seen, given_of, patches_of, with_images
from alula.codecs.text import TextCodec, read_config
from alula.codecs.vectors import vectors

__all__ = [
    "MOST_PIXELS",
    "Answer",
    "Box",
    "ChatTemplate",
    "DetectionCodec",
    "Detector",
    "Entity",
    "ImageCodec",
    "ImagePart",
    "ImagesCodec",
    "Line",
    "Message",
    "Page",
    "Parts",
    "Patcher",
    "Patches",
    "Pixels",
    "Raster",
    "RecognitionCodec",
    "Row",
    "Scored",
    "Seen",
    "Sheet",
    "TextCodec",
    "TokenLabel",
    "answers",
    "blue_first",
    "captioned",
    "classes",
    "collate",
    "count_sheets",
    "decode",
    "decode_sheet",
    "draw_boxes",
    "each_image",
    "entities",
    "fit",
    "given_of",
    "images_codec",
    "messages_of",
    "outlined",
    "padded_lengths",
    "patches_of",
    "pixels_in",
    "places_of",
    "read_config",
    "refuse_sliver",
    "relevance",
    "row_outputs",
    "straightened",
    "to_jpeg",
    "token_labels",
    "tools_of",
    "vectors",
    "with_images",
    "within",
]
