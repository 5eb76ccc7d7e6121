"""Every family and precision as TensorRT gets it: compiled by TensorRT-RTX, and in the dialect of 8.6 too.

What the graphs compute is compared with fp32 in ONNX Runtime, all sizes of a dynamic profile are compiled for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from family_cases import WHOLE, Case, case_of, limit, pairs, shapes
from oldest import refusals
from rtx import compiled

from alula.families import describe, open_checkpoint, write
from alula.graphs import passes_for, quantize, rewrite, save, scheme_for
from alula.graphs.passes.opset import LowerOpset


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """The case of a family, made once."""
    return cache(lambda family: case_of(family, tmp_path_factory.mktemp("family")))


@pytest.mark.parametrize(
    ("family", "precision"), pairs("fp32", "fp16", "bf16", "int8", large=("fp16", "int8"))
)
def test_a_family_compiles_and_stays_near_fp32(
    family: str, precision: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    graph = case(family).graph(precision, None)
    # ONNX Runtime has no kernels for bf16.
    if precision != "bf16":
        assert case(family).error(graph) < limit(family, precision)
    saved = save(graph, tmp_path / "graph.onnx", precision)
    given = compiled(saved.path, shapes(graph), decomposable=precision == "fp32")
    assert given.attentions == (family in WHOLE)


@pytest.mark.parametrize(("family", "precision"), pairs("fp32", "fp16", "int8", large=("int8",)))
def test_a_family_in_the_words_of_tensorrt_8_6(
    family: str, precision: str, case: Callable[[str], Case], tmp_path: Path
) -> None:
    graph = case(family).graph(precision, 17)
    assert refusals(graph) == []
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    assert case(family).error(graph) < limit(family, precision)
    saved = save(graph, tmp_path / "graph.onnx", precision)
    assert compiled(saved.path, shapes(graph)).attentions == 0


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        ("bert", {"DequantizeLinear: needs three inputs"}),
        ("mpnet", {"DequantizeLinear: needs three inputs", "CumSum: not known"}),
        ("deberta-v2", {"Sign: of INT64, is there for floating point alone"}),
        (
            "sdpa",
            {
                "DequantizeLinear: needs three inputs",
                "Shape: a range is read as the whole shape",
                "Squeeze: axes are not constant",
            },
        ),
    ],
)
def test_a_lower_opset_alone_is_not_enough_for_it(
    family: str, reasons: set[str], case: Callable[[str], Case]
) -> None:
    one = case(family)
    eight = quantize(one.model, one.ranges, scheme=scheme_for("tensorrt"))
    assert refusals(eight)[0] == "opset 23"
    lowered = rewrite(eight, [LowerOpset(17)])
    assert reasons <= {each.partition(": ")[2] for each in refusals(lowered)}


def test_each_attention_of_a_trained_encoder_has_a_kernel_in_fp16(
    minilm_folder: Path, tmp_path: Path
) -> None:
    """None may be taken apart, so an engine there is one with six kernels for attention."""
    checkpoint = open_checkpoint(str(minilm_folder))
    model = write(checkpoint, describe(checkpoint), "encoder")
    graph = rewrite(model, passes_for("tensorrt-rtx", "fp16"))
    saved = save(graph, tmp_path / "minilm.onnx", "fp16")
    given = compiled(saved.path, shapes(graph))
    assert given.attentions == 6
    # 22.7 million weights.
    assert 44e6 < len(given.engine) < 55e6
