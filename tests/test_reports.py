"""Public reports of what went wrong elsewhere: each has a test here that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent

REPORTS = {
    "saving again doubles external data": "onnx/onnx#6655",
    "weights are looked up in the working folder": "NVIDIA/TensorRT#4257",
    "an empty file above 2 GiB": "pytorch/pytorch#19277",
    "batch or length is frozen by tracing": "kotaro-kinoshita/yomitoku#215",
    "tied weights are stored twice": "huggingface/optimum#1326",
    "token_type_ids are missing": "huggingface/optimum#1758",
    "a fully masked row is NaN": "microsoft/onnxscript#2479",
    "positions are fixed at the traced size": "huggingface/transformers#33226",
    "a hidden state overflows fp16": "huggingface/transformers#5651",
    "squares of a norm overflow fp16": "pytorch/pytorch#133085",
    "a standardisation overflows fp16": "vllm-project/vllm#40290",
    "half precision meets float32 constants": "huggingface/transformers#35332",
    "a row differs alone and in a batch": "NVIDIA/TensorRT#3730",
    "nothing, or too much, kills the server": "triton-inference-server/server#5972",
    "a truncated engine": "NVIDIA/TensorRT#2072",
    "an engine of another build": "NVIDIA/TensorRT#2177",
    "a silent fallback to the CPU": "microsoft/onnxruntime#23372",
    "pooling ignores the padding's side": "huggingface/sentence-transformers#3208",
    "a pair with an empty side": "huggingface/tokenizers#381",
    "a lone surrogate": "JustVugg/colibri#1589",
    "514 positions hold 512 tokens": "huggingface/transformers#14243",
    "memory creeps with varied shapes": "microsoft/onnxruntime#24376",
    "the opset asked for is ignored": "pytorch/pytorch#150592",
    "a calibration is reused after the weights changed": "NVIDIA/TensorRT#3137",
    "a calibrator leaves a rest of samples out": "Adlik/Adlik#534",
    "a recogniser loses what it reads in int8": "OpenPPL/ppq#419",
    "a recogniser gives NaN in int8": "NVIDIA/TensorRT#2490",
    "a photograph lies on its side": "sgl-project/sglang#33464",
    "sixteen bits become white": "unslothai/unsloth#10094",
    "inks are taken for colours": "python-pillow/Pillow#2564",
    "text on nothing becomes black on black": "tesseract-ocr/tesseract#369",
    "pages and pictures behind the first": "tesseract-ocr/tesseract#3369",
    "a vast raster in a small file": "vllm-project/vllm#47010",
    "slivers": "PaddlePaddle/PaddleX#5087",
    "one image that is cut off stalls all": "rom1504/clip-retrieval#257",
    "a locked PDF": "jztan/pdf-mcp#59",
    "a page without a size": "pymupdf/PyMuPDF#3663",
    "all pages are rendered before the first is read": "xberg-io/xberg#576",
    "a page is turned twice": "Unstructured-IO/unstructured-inference#514",
    "boxes are thousandths": "Tencent-Hunyuan/HunyuanOCR#76",
    "an answer of coordinates alone": "Tencent-Hunyuan/HunyuanOCR#118",
    "honest repetition": "xberg-io/xberg#1704",
}


@pytest.mark.parametrize("what", REPORTS)
def test_a_report_is_named_by_a_test(what: str) -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path.name != Path(__file__).name]
    assert any(REPORTS[what] in path.read_text("utf-8") for path in files)
