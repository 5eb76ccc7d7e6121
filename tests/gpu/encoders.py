"""A small encoder with attention, which every engine version reads: opset 17, random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec

VOCABULARY, WIDTH, HEADS = 100, 64, 2
INPUTS = tuple(
    TensorSpec(name=name, dtype="int64", shape=("batch", "length"))
    for name in ("input_ids", "attention_mask")
)
OUTPUTS = (
    TensorSpec(name="states", dtype="float32", shape=("batch", "length", WIDTH)),
    TensorSpec(name="embedding", dtype="float32", shape=("batch", WIDTH)),
)
PROFILE = Profile({"batch": Range(1, 4, 16), "length": Range(1, 16, 128)})


def write(path: Path) -> Graph:
    """One layer of attention with a mask, a norm, and the mean over tokens."""
    random = np.random.default_rng(3)
    weights = {
        "table": random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32),
        **{n: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8 for n in ("q", "k", "v", "o")},
        "gamma": np.ones(WIDTH, np.float32),
        "beta": np.zeros(WIDTH, np.float32),
        "split": np.array([0, 0, HEADS, -1]),
        "join": np.array([0, 0, WIDTH]),
        "one": np.array(1, np.float32),
        "low": np.array(-1e4, np.float32),
        "scale": np.array((WIDTH // HEADS) ** -0.5, np.float32),
        "axes12": np.array([1, 2]),
        "axis2": np.array([2]),
        "axis1": np.array([1]),
    }
    n = helper.make_node
    nodes = [n("Gather", ["table", "input_ids"], ["tokens"], name="layer/look_up")]
    nodes += [n("Cast", ["attention_mask"], ["kept"], name="mask/cast", to=TensorProto.FLOAT)]
    nodes += [n("Unsqueeze", ["kept", "axes12"], ["wide"], name="mask/wide")]
    nodes += [
        n("Sub", ["one", "wide"], ["gone"], name="mask/gone"),
        n("Mul", ["gone", "low"], ["bias"], name="mask/bias"),
    ]
    for each in ("q", "k", "v"):
        nodes += [
            n("MatMul", ["tokens", each], [f"{each}1"], name=f"layer/{each}/product"),
            n("Reshape", [f"{each}1", "split"], [f"{each}2"], name=f"layer/{each}/split"),
            n(
                "Transpose",
                [f"{each}2"],
                [f"{each}3"],
                name=f"layer/{each}/heads",
                perm=[0, 2, 3, 1] if each == "k" else [0, 2, 1, 3],
            ),
        ]
    nodes += [
        n("MatMul", ["q3", "k3"], ["scores"], name="layer/scores"),
        n("Mul", ["scores", "scale"], ["scaled"], name="layer/scale"),
        n("Add", ["scaled", "bias"], ["masked"], name="layer/mask"),
        n("Softmax", ["masked"], ["shares"], name="layer/softmax", axis=-1),
        n("MatMul", ["shares", "v3"], ["mixed"], name="layer/mix"),
        n("Transpose", ["mixed"], ["back"], name="layer/back", perm=[0, 2, 1, 3]),
        n("Reshape", ["back", "join"], ["joined"], name="layer/join"),
        n("MatMul", ["joined", "o"], ["out"], name="layer/out"),
        n("Add", ["out", "tokens"], ["sum"], name="layer/residual"),
        n(
            "LayerNormalization",
            ["sum", "gamma", "beta"],
            ["states"],
            name="layer/norm",
            axis=-1,
            epsilon=1e-5,
        ),
        n("Unsqueeze", ["kept", "axis2"], ["column"], name="pool/column"),
        n("Mul", ["states", "column"], ["counted"], name="pool/drop"),
        n("ReduceSum", ["counted", "axis1"], ["total"], name="pool/sum", keepdims=0),
        n("ReduceSum", ["column", "axis1"], ["count"], name="pool/count", keepdims=0),
        n("Div", ["total", "count"], ["embedding"], name="pool/mean"),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(spec.name, TensorProto.INT64, spec.shape) for spec in INPUTS],
        [helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, spec.shape) for spec in OUTPUTS],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Graph(
        path=path,
        digest="e" * 64,
        opset=17,
        nodes=len(nodes),
        precision="fp32",
        inputs=INPUTS,
        outputs=OUTPUTS,
    )


def feeds(rows: int, length: int, seed: int = 0) -> dict[str, Array]:
    """Random ids, ragged, padded right."""
    random = np.random.default_rng([seed, rows, length])
    sizes = random.integers(1, length, rows, endpoint=True)
    sizes[0] = length
    mask = (np.arange(length) < sizes[:, None]).astype(np.int64)
    return {"input_ids": random.integers(0, VOCABULARY, (rows, length)) * mask, "attention_mask": mask}


def same(left: Feeds, right: Feeds) -> bool:
    """Whether two answers are equal to the last bit."""
    return all(left[name].tobytes() == right[name].tobytes() for name in left) and set(left) == set(right)


def near(left: Feeds, right: Feeds, mask: Array, limit: float) -> bool:
    """Whether two answers are near where there are tokens; NaN is not near."""
    states, embedding = (
        np.abs(np.asarray(left[name], np.float64) - np.asarray(right[name], np.float64))
        for name in ("states", "embedding")
    )
    return bool(states[mask.astype(bool)].max() <= limit) and bool(embedding.max() <= limit)
