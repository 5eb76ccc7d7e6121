"""all-MiniLM-L6-v2 in Triton's Python backend: texts in, embeddings out, padded to the longest of a batch.

Runs inside Triton, which is given it by `triton_peer.py`; imports nothing of ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as utils  # type: ignore[import-not-found]  # Triton brings it
from tokenizers import Tokenizer

LONGEST = 256


class TritonPythonModel:
    """What the backend looks for; parameters say which file runs in what, and on how many threads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the tokenizer and the engine."""
        told = {
            name: each["string_value"]
            for name, each in json.loads(args["model_config"])["parameters"].items()
        }
        self._tokenizer = Tokenizer.from_file(told["tokenizer"])
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding()
        opened = _openvino if told["engine"] == "openvino" else _onnxruntime
        self._names, self._run = opened(told["file"], int(told["threads"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """All rows of all requests in one call of the engine."""
        texts = [utils.get_input_tensor_by_name(each, "TEXT").as_numpy().reshape(-1) for each in requests]
        found = self._tokenizer.encode_batch([text.decode() for some in texts for text in some])
        feeds = {
            "input_ids": np.array([each.ids for each in found], np.int64),
            "attention_mask": np.array([each.attention_mask for each in found], np.int64),
            "token_type_ids": np.array([each.type_ids for each in found], np.int64),
        }
        embeddings = self._run({name: feeds[name] for name in self._names})
        ends = np.cumsum([len(some) for some in texts])
        return [
            utils.InferenceResponse([utils.Tensor("EMBEDDING", rows)])
            for rows in np.split(embeddings, ends[:-1])
        ]


def _onnxruntime(file: str, threads: int) -> tuple[list[str], Any]:
    import onnxruntime  # noqa: PLC0415 - one of two

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return [each.name for each in session.get_inputs()], lambda feeds: session.run(["embedding"], feeds)[0]


def _openvino(file: str, threads: int) -> tuple[list[str], Any]:
    """A model that was compiled, loaded as our own server loads it."""
    import openvino  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - likewise

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = openvino.Core().import_model(Path(file).read_bytes(), "CPU", settings)
    request = compiled.create_infer_request()
    names = [each.get_any_name() for each in compiled.inputs]
    return names, lambda feeds: request.infer(feeds)["embedding"].copy()
