"""One tiny masked encoder, four ways: as an ONNX graph for the compilers, as a BERT for torch, as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from gpus import REASON, pretended
from onnx import TensorProto, helper, numpy_helper

from alula.core.engine import Engine, Plan, Session
from alula.core.graph import Graph
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.engines import CPU, backend, fake

VOCABULARY, WIDTH = 50, 8
INPUTS = (
    TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length")),
    TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "length")),
)
OUTPUTS = (TensorSpec(name="embedding", dtype="float32", shape=("batch", WIDTH)),)
PROFILE = Profile({"batch": Range(1, 4, 8), "length": Range(2, 8, 32)})
RANDOM = np.random.default_rng(7)
TABLE = RANDOM.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
LINEAR = RANDOM.standard_normal((WIDTH, WIDTH)).astype(np.float32)
KINDS = ("openvino", "onnxruntime", "torch", "fake", "tensorrt", "tensorrt on a pretended GPU")

Open = Callable[[], Session]


def mean_of_tokens(feeds: Feeds) -> Feeds:
    mask = feeds["attention_mask"][..., None].astype(np.float32)
    pooled = (TABLE[np.asarray(feeds["input_ids"], np.int64)] * mask).sum(1) / mask.sum(1)
    return {"embedding": pooled @ LINEAR}


def write_graph(path: Path) -> Graph:
    """The same function as `mean_of_tokens`, in ONNX."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["tokens"], name="look_up"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["kept"], name="unsqueeze"),
        helper.make_node("Mul", ["tokens", "kept"], ["masked"], name="drop_padding"),
        helper.make_node("ReduceSum", ["masked", "second"], ["total"], name="sum", keepdims=0),
        helper.make_node("ReduceSum", ["kept", "second"], ["count"], name="count", keepdims=0),
        helper.make_node("Div", ["total", "count"], ["pooled"], name="mean"),
        helper.make_node("MatMul", ["pooled", "linear"], ["embedding"], name="project"),
    ]
    weights = {"table": TABLE, "linear": LINEAR, "last": np.array([2]), "second": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(spec.name, TensorProto.INT64, spec.shape) for spec in INPUTS],
        [helper.make_tensor_value_info(spec.name, TensorProto.FLOAT, spec.shape) for spec in OUTPUTS],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return Graph(
        path=path,
        digest="d" * 64,
        opset=17,
        nodes=len(nodes),
        precision="fp32",
        inputs=INPUTS,
        outputs=OUTPUTS,
    )


def write_checkpoint(root: Path) -> ModelSpec:
    """A random BERT of the same inputs and outputs."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
    )
    transformers.BertModel(config).save_pretrained(root)
    return ModelSpec(
        name="tiny",
        digest="d" * 64,
        revision="main",
        architecture="BertModel",
        family="bert",
        task="embeddings",
        parts=(Part(name="encoder", inputs=INPUTS, outputs=OUTPUTS),),
        max_length=40,
        vocab_size=VOCABULARY,
        pad_id=0,
        pooling="mean",
    )


def opener(kind: str, folder: Path) -> Open:
    """What opens a new session of one kind each time it is called."""
    if kind == "fake":
        return lambda: fake.session(INPUTS, OUTPUTS, PROFILE, mean_of_tokens)
    if kind == "torch":
        spec = write_checkpoint(folder / "checkpoint")
        from alula.engines.torch import reference  # noqa: PLC0415 - loads torch

        return lambda: reference(folder / "checkpoint", spec, threads=1, profile=PROFILE)
    graph = write_graph(folder / "tiny.onnx")
    if kind == "tensorrt on a pretended GPU":
        return lambda: pretended(graph, Plan(profile=PROFILE), folder / "engine")
    if kind == "tensorrt" and REASON:
        pytest.skip(f"NOT RUN ON A GPU: {REASON}")
    if not REASON and kind in CPU and find_spec(kind) is None:
        pytest.skip(f"NOT RUN: {kind} is not on this machine, which is here for its GPU")
    engine: Engine = backend(kind).compile(graph, Plan(profile=PROFILE), folder / "engine")
    return lambda: backend(kind).open(engine, threads=1)


@pytest.fixture(scope="module", params=KINDS)
def new_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Open:
    return opener(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def session(new_session: Open) -> Iterator[Session]:
    opened = new_session()
    yield opened
    opened.close()
