"""What a module of this folder gives for the model types it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from alula.families.builder import Builder
from alula.families.layers import Inputs
from alula.families.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How to write an encoder, and what its head for whole texts is.

    `prefix` is what the names of the encoder's weights start with where a head lies beside it; `summarize`
    turns token states into what the last layer of its classification head takes.
    """

    prefix: str
    encode: Callable[[Builder, Inputs, Settings], ir.Value]
    summarize: Callable[[Builder, ir.Value, Settings], ir.Value]
