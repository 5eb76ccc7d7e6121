"""Whether attention is one layer."""

from __future__ import annotations

import pytest
from made import graph, layer

from alula.core.nodes import Nodes
from alula.fusion import Attention, Layer
from alula.fusion.attention import attention, places

PLAIN = graph(
    "scores = MatMul(q, k)",
    "scaled = Div(scores, w)",
    "masked = Add(scaled, mask)",
    "soft = Softmax(masked)",
    "clean = Where(nan, b, soft)",
    "mixed = MatMul(clean, v)",
    inputs="q k v mask nan",
)
OPERATOR = graph("mixed = Attention(q, k, v)", inputs="q k v")


def judged(nodes: Nodes | None, *layers: Layer) -> Attention:
    return attention(layers, nodes)


def test_attention_is_found_through_scale_mask_and_what_exporters_put_behind_the_softmax() -> None:
    assert [place.pieces for place in places(PLAIN)] == [("scores", "soft", "mixed")]
    assert [place.pieces for place in places(OPERATOR)] == [("mixed",)]


def test_a_softmax_of_a_classifier_is_no_attention() -> None:
    nodes = graph("logits = MatMul(x, w)", "y = Softmax(logits)")
    assert judged(nodes, layer("a", nodes=("logits", "y"))) == Attention(
        verdict="none", evidence="the graph has none"
    )


@pytest.mark.parametrize(
    ("layers", "verdict", "evidence"),
    [
        (
            ("scores scaled masked soft clean mixed",),
            "fused",
            "both products and the softmax are in one layer",
        ),
        (
            ("scores scaled masked soft", "mixed"),
            "in part",
            "the softmax shares a layer with one of the products",
        ),
        (
            ("scores", "scaled masked soft", "mixed"),
            "not fused",
            "products and softmax are layers of their own",
        ),
        (("scores", "mixed"), "unknown", "a part of it is in no layer"),
    ],
)
def test_the_verdict_on_attention_written_out(layers: tuple[str, ...], verdict: str, evidence: str) -> None:
    made = [layer(names, nodes=tuple(names.split()), kind="kgen") for names in layers]
    found = judged(PLAIN, *made)
    assert (found.verdict, found.places) == (verdict, 1)
    assert found.evidence.startswith(evidence)


def test_the_operator_is_fused_where_one_layer_does_it() -> None:
    one = judged(OPERATOR, layer("a", nodes=("mixed",), kind="Attention"))
    assert (one.verdict, one.evidence) == ("fused", "the Attention operator is one layer, Attention")
    split = judged(OPERATOR, layer("a", nodes=("mixed",)), layer("b", nodes=("mixed",)))
    assert (split.verdict, split.evidence) == ("not fused", "the Attention operator is split into 2 layers")


def test_a_region_that_nobody_looks_into_is_no_evidence() -> None:
    names = ("scores", "soft", "mixed")
    found = judged(PLAIN, layer("{ForeignNode[a...b]}", nodes=names, opaque=True))
    assert found.verdict == "unknown"


def test_of_several_places_some_may_be_fused() -> None:
    nodes = graph("one = Attention(q, k, v)", "two = Attention(one, k, v)", inputs="q k v")
    made = [layer("a", nodes=("one",)), layer("b", nodes=("two",)), layer("c", nodes=("two",))]
    found = judged(nodes, *made)
    assert (found.verdict, found.fused, found.places) == ("in part", 1, 2)
    assert "1 times: the Attention operator is split into 2 layers" in found.evidence


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (layer("a", kernel="_gemm_mha_v2_0x957a"), "fused"),
        (layer("fmha_v2_flash_attention_fp16_64_64_S_128"), "fused"),
        (layer("a", kind="ScaledDotProductAttention"), "fused"),
        (layer("a", kind="Attention"), "fused"),
        # A node's name is no kernel's.
        (layer("/encoder/layers_3/mha/output/dense/MatMul_myl0_25", kernel="sm80_xmma_gemm_f16f16"), "none"),
        (layer("encoder.layer.0.attention.self.query/MatMul_myl0_3"), "none"),
        (layer("/encoder/Softmax_myl0_4"), "unknown"),
        (layer("region", opaque=True), "unknown"),
    ],
)
def test_without_a_graph_the_names_of_kernels_are_what_is_known(made: Layer, verdict: str) -> None:
    assert judged(None, made).verdict == verdict
