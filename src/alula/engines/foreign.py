"""What a runtime says when it fails, as one line of ours."""

from __future__ import annotations

import re

# OpenVINO opens each message with the places in its own source it passed through.
_PLACES = re.compile(r"^(Exception from .*:|Check '.*' failed at .*:)$")
# ONNX Runtime opens with a code and its name, and says where in its own source it was.
_CODES = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |\S*/onnxruntime/core/\S+:\d+ [^()]*\([^()]*\) ")


def said(error: BaseException) -> str:
    """The message of a foreign error on one line, without the places in the runtime's source."""
    lines = [_CODES.sub("", line).strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not _PLACES.match(line)]
    return "; ".join(telling) or type(error).__name__
