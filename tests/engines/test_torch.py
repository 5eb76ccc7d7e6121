from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.errors import EngineError, InputError, RunError, ShapeError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import Array, TensorSpec
from alula.core.words import POOLINGS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from alula.engines.torch import TorchSession, reference  # noqa: E402 - needs both

WIDTH = 8
SHAPE = ("batch", "length")
INPUTS = tuple(TensorSpec(name=name, dtype="int64", shape=SHAPE) for name in ("input_ids", "attention_mask"))


def config(**others: object) -> object:
    return transformers.BertConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
        **others,
    )


def spec(task: str, *outputs: TensorSpec, pooling: str = "", normalize: bool = False) -> ModelSpec:
    return ModelSpec(
        name="tiny",
        digest="d" * 64,
        revision="main",
        architecture="BertModel",
        family="bert",
        task=task,
        parts=(Part(name="encoder", inputs=INPUTS, outputs=outputs),),
        max_length=40,
        vocab_size=50,
        pad_id=0,
        pooling=pooling,
        normalize=normalize,
    )


def embeddings(pooling: str, size: int = WIDTH, *, normalize: bool = False) -> ModelSpec:
    output = TensorSpec(name="embedding", dtype="float32", shape=("batch", size))
    return spec("embeddings", output, pooling=pooling, normalize=normalize)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    root = tmp_path_factory.mktemp("bert")
    transformers.BertModel(config()).save_pretrained(root)
    return root


def padded(side: str) -> dict[str, Array]:
    """Rows of 5, 3 and 1 tokens, padded to 5 on one side."""
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.int64)
    ids = np.array([[5, 6, 7, 8, 9], [4, 3, 2, 0, 0], [1, 0, 0, 0, 0]], np.int64)
    return {"input_ids": ids, "attention_mask": mask} if side == "right" else flipped(ids, mask)


def flipped(ids: Array, mask: Array) -> dict[str, Array]:
    return {
        "input_ids": np.ascontiguousarray(ids[:, ::-1]),
        "attention_mask": np.ascontiguousarray(mask[:, ::-1]),
    }


def states(root: Path, feeds: dict[str, Array]) -> list[Array]:
    """Hidden states of the kept tokens of every row, straight from transformers."""
    model = transformers.BertModel.from_pretrained(root).eval()
    with torch.inference_mode():
        hidden = model(
            **{name: torch.from_numpy(array) for name, array in feeds.items()}
        ).last_hidden_state.numpy()
    return [row[keep == 1] for row, keep in zip(hidden, feeds["attention_mask"], strict=True)]


def furthest(found: Array, expected: Array) -> float:
    """The largest difference; arrays of different shapes fail."""
    assert found.shape == expected.shape
    return float(np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max())


def weighted(row: Array) -> Array:
    return np.asarray(np.average(np.asarray(row, np.float64), axis=0, weights=np.arange(1, len(row) + 1)))


BY_HAND: dict[str, Callable[[Array], Array]] = {
    "mean": lambda row: np.asarray(row, np.float64).mean(0),
    "cls": lambda row: row[0],
    "lasttoken": lambda row: row[-1],
    "max": lambda row: row.max(0),
    "mean_sqrt_len_tokens": lambda row: np.asarray(row, np.float64).sum(0) / np.sqrt(len(row)),
    "weightedmean": weighted,
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_counts_kept_tokens_on_either_side_of_the_padding(
    bert: Path, pooling: str, side: str
) -> None:
    feeds = padded(side)
    expected = np.stack([BY_HAND[pooling](row) for row in states(bert, feeds)])
    found = reference(bert, embeddings(pooling), threads=1).run(feeds)["embedding"]
    assert furthest(found, expected) < 1e-6


def test_embeddings_are_normalised_when_the_checkpoint_says_so(bert: Path) -> None:
    plain = reference(bert, embeddings("mean"), threads=1).run(padded("right"))["embedding"]
    scaled = reference(bert, embeddings("mean", normalize=True), threads=1).run(padded("right"))["embedding"]
    assert furthest(scaled, plain / np.linalg.norm(plain, axis=1, keepdims=True)) < 1e-6


def with_dense(
    bert: Path, root: Path, activation: str, weights: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A copy of the checkpoint with a Dense module after pooling; its weight and bias."""
    transformers.BertModel.from_pretrained(bert).save_pretrained(root)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    folder = root / "2_Dense"
    folder.mkdir()
    settings = {"in_features": WIDTH, "out_features": 4, "bias": True, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(settings))
    state = {"linear.weight": torch.randn(4, WIDTH), "linear.bias": torch.randn(4)}
    if weights.endswith(".bin"):
        torch.save(state, folder / weights)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(state, folder / weights, metadata={"format": "pt"})
    return state["linear.weight"].numpy(), state["linear.bias"].numpy()


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("torch.nn.modules.activation.Tanh", np.tanh),
        ("torch.nn.modules.linear.Identity", lambda x: x),
        ("torch.nn.modules.activation.ReLU()", lambda x: np.maximum(x, 0)),
    ],
)
def test_dense_modules_follow_pooling(
    bert: Path, tmp_path: Path, weights: str, activation: str, function: Callable[[Array], Array]
) -> None:
    weight, bias = with_dense(bert, tmp_path, activation, weights)
    pooled = reference(bert, embeddings("mean"), threads=1).run(padded("right"))["embedding"]
    found = reference(tmp_path, embeddings("mean", 4), threads=1).run(padded("right"))["embedding"]
    assert furthest(found, function(np.asarray(pooled, np.float32) @ weight.T + bias)) < 1e-5


def test_an_activation_from_elsewhere_is_refused(bert: Path, tmp_path: Path) -> None:
    with_dense(bert, tmp_path, "os.system", "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"^Dense module has activation 'os.system', expected one of torch.nn$"
    ):
        reference(tmp_path, embeddings("mean", 4), threads=1)


HEADS: list[tuple[str, str, int, dict[str, tuple[int | str, ...]]]] = [
    ("sequence-classification", "BertForSequenceClassification", 3, {"logits": ("batch", 3)}),
    ("reranking", "BertForSequenceClassification", 3, {"logits": ("batch", 3)}),
    ("token-classification", "BertForTokenClassification", 3, {"logits": ("batch", "length", 3)}),
    ("question-answering", "BertForQuestionAnswering", 2, {"start_logits": SHAPE, "end_logits": SHAPE}),
]


@pytest.mark.parametrize(("task", "kind", "labels", "shapes"), HEADS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_task_gives_the_outputs_of_its_model(
    tmp_path: Path, task: str, kind: str, labels: int, shapes: dict[str, tuple[int | str, ...]], dtype: str
) -> None:
    model = getattr(transformers, kind)(config(num_labels=labels)).eval()
    model.save_pretrained(tmp_path)
    outputs = [TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()]
    feeds = padded("right")
    with torch.inference_mode():
        expected = model(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    found = reference(tmp_path, spec(task, *outputs), threads=1, dtype=dtype).run(feeds)
    assert list(found) == list(shapes)
    for output in outputs:
        assert found[output.name].shape == output.sized({"batch": 3, "length": 5})
        assert found[output.name].dtype == np.float32
        limit = 1e-6 if dtype == "fp32" else 2e-2
        assert furthest(found[output.name], expected[output.name].numpy()) < limit


def test_a_head_that_was_never_trained_is_refused(bert: Path) -> None:
    # transformers makes missing weights up and only warns: a random reference would agree with nothing.
    output = TensorSpec(name="logits", dtype="float32", shape=("batch", 2))
    with pytest.raises(
        InputError, match=r"has no weights for classifier.bias, classifier.weight; name the task"
    ):
        reference(bert, spec("sequence-classification", output), threads=1)


def test_a_model_without_its_pooler_still_gives_embeddings(tmp_path: Path) -> None:
    transformers.BertModel(config(), add_pooling_layer=False).save_pretrained(tmp_path)
    assert reference(tmp_path, embeddings("mean"), threads=1).run(padded("right"))["embedding"].shape == (
        3,
        WIDTH,
    )


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"^transformers cannot load {tmp_path}: "):
        reference(tmp_path, embeddings("mean"), threads=1)


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        (spec("translation"), "task 'translation' is not one of: "),
        (embeddings("middle"), "pooling 'middle' is not one of: "),
    ],
)
def test_words_that_nobody_knows_are_refused(bert: Path, unknown: ModelSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        reference(bert, unknown, threads=1)


def test_a_precision_that_torch_does_not_offer_is_refused(bert: Path) -> None:
    with pytest.raises(InputError, match=r"^engine 'torch' offers fp32, bf16, not 'int8'$"):
        reference(bert, embeddings("mean"), threads=1, dtype="int8")


def test_without_a_profile_the_model_bounds_the_length(bert: Path) -> None:
    long: dict[str, Array] = {name: np.ones((1, 41), np.int64) for name in ("input_ids", "attention_mask")}
    with pytest.raises(ShapeError, match=r"^axis 'length' is 41; built for 1..40$"):
        reference(bert, embeddings("mean"), threads=1).run(long)


def test_threads_hold(bert: Path) -> None:
    before = torch.get_num_threads()
    reference(bert, embeddings("mean"), threads=1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_loading_draws_no_progress_of_its_own(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reference(bert, embeddings("mean"), threads=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_classifier_of_images_takes_pixels(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(4)
    sizes = {"embedding_size": 4, "hidden_sizes": [8], "depths": [1], "num_labels": 3}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).eval()
    model.save_pretrained(tmp_path)
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, 32, 24))
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", 3))
    part = Part(name="encoder", inputs=(pixels,), outputs=(logits,))
    described = dataclasses.replace(
        spec("image-classification"), parts=(part,), max_length=0, vocab_size=0, labels=("a", "b", "c")
    )
    session = reference(tmp_path, described, threads=1, dtype=dtype)
    given = np.random.default_rng(0).normal(size=(2, 3, 32, 24)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(given)).logits.numpy()
    found = session.run({"pixel_values": given})["logits"]
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= (1e-6 if dtype == "fp32" else 0.05)
    with pytest.raises(ShapeError, match="pixel_values"):
        session.run({"pixel_values": given[:, :, :-1]})


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_positions_are_interpolated_where_images_are_of_any_size(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(5)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    made = getattr(transformers, f"{kind}Config")(image_size=32, patch_size=8, num_labels=3, **sizes)
    model = getattr(transformers, f"{kind}ForImageClassification")(made).eval()
    model.save_pretrained(tmp_path)
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", 3))

    def session(*sides: int | str) -> TorchSession:
        pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, *sides))
        part = Part(name="encoder", inputs=(pixels,), outputs=(logits,))
        images = dataclasses.replace(spec("image-classification"), parts=(part,), max_length=0, vocab_size=0)
        return reference(tmp_path, images, threads=1)

    given = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 40, 24)).astype(np.float32))
    options = {"interpolate_pos_encoding": True} if kind == "ViT" else {}
    with torch.no_grad():
        expected = model(given, **options).logits.numpy()
    for sides in (("height", "width"), ("height", 24)):
        found = session(*sides).run({"pixel_values": given.numpy()})["logits"]
        assert np.abs(found - expected).max() <= 1e-6
    if kind == "ViT":
        with pytest.raises(RunError, match=r"torch failed: Input image size .40\*24. doesn't match model"):
            session(40, 24).run({"pixel_values": given.numpy()})
