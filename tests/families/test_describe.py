from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.families import describe, open_checkpoint

BASE = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 20,
    "max_position_embeddings": 512,
}
DEBERTA = {**BASE, "model_type": "deberta-v2", "pad_token_id": 0}
CLASSIFIER = "BertForSequenceClassification"
Told = Callable[..., ModelSpec]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    """Describe a checkpoint of these settings, files and heads."""

    def make(
        config: dict[str, Any],
        files: dict[str, Any] | None = None,
        heads: tuple[str, ...] = ("classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight"),
        **asked: str,
    ) -> ModelSpec:
        save_file({name: np.zeros((2, 8), np.float32) for name in heads}, tmp_path / "model.safetensors")
        for name, content in {"config.json": config, **(files or {})}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(content))
        return describe(open_checkpoint(str(tmp_path)), asked.get("task"), asked.get("pooling"))

    return make


def modules(*kinds: str) -> list[dict[str, str]]:
    """A modules.json as sentence-transformers writes it."""
    paths = ["" if kind == "Transformer" else f"{place}_{kind}" for place, kind in enumerate(kinds)]
    return [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in zip(kinds, paths, strict=True)
    ]


def shapes(spec: ModelSpec) -> dict[str, tuple[int | str, ...]]:
    return {output.name: output.shape for output in spec.part("encoder").outputs}


@pytest.mark.parametrize(
    ("architecture", "labels", "task", "outputs"),
    [
        ("BertModel", 2, "embeddings", {"embedding": ("batch", 8)}),
        ("BertForSequenceClassification", 3, "sequence-classification", {"logits": ("batch", 3)}),
        ("BertForSequenceClassification", 1, "reranking", {"logits": ("batch", 1)}),
        ("BertForTokenClassification", 5, "token-classification", {"logits": ("batch", "length", 5)}),
        (
            "BertForQuestionAnswering",
            2,
            "question-answering",
            {"start_logits": ("batch", "length"), "end_logits": ("batch", "length")},
        ),
    ],
)
def test_the_architecture_names_the_task(
    told: Told, architecture: str, labels: int, task: str, outputs: dict[str, tuple[int | str, ...]]
) -> None:
    spec = told(
        {**BASE, "architectures": [architecture], "id2label": {str(n): f"L{n}" for n in range(labels)}}
    )
    assert (spec.task, shapes(spec), spec.architecture) == (task, outputs, architecture)


@pytest.mark.parametrize(
    ("model_type", "family"),
    [
        ("bert", "bert"),
        ("roberta", "roberta"),
        ("xlm-roberta", "roberta"),
        ("camembert", "roberta"),
        ("distilbert", "distilbert"),
        ("mpnet", "mpnet"),
        ("electra", "electra"),
        ("deberta-v2", "traced"),
        ("modernbert", "traced"),
    ],
)
def test_the_model_type_names_the_family(told: Told, model_type: str, family: str) -> None:
    assert told({**BASE, "model_type": model_type}).family == family


@pytest.mark.parametrize(
    ("config", "has"),
    [
        ({"model_type": "bert"}, True),
        ({"model_type": "bert", "type_vocab_size": 1}, False),
        ({"model_type": "electra"}, True),
        ({"model_type": "roberta", "type_vocab_size": 1}, False),
        ({"model_type": "roberta", "type_vocab_size": 2}, True),
        ({"model_type": "distilbert"}, False),
        ({"model_type": "mpnet"}, False),
        ({"model_type": "deberta-v2", "type_vocab_size": 0}, False),
        ({"model_type": "deberta-v2", "type_vocab_size": 2}, True),
        ({"model_type": "modernbert"}, False),
    ],
)
def test_token_types_are_an_input_only_where_they_matter(
    told: Told, config: dict[str, Any], has: bool
) -> None:
    names = [given.name for given in told({**BASE, **config}).part("encoder").inputs]
    assert names == ["input_ids", "attention_mask", *(["token_type_ids"] if has else [])]


@pytest.mark.parametrize(
    ("ending", "task"),
    [("Model", "embeddings"), ("ForSequenceClassification", "sequence-classification")],
)
def test_a_model_without_a_module_is_described_all_the_same(told: Told, ending: str, task: str) -> None:
    spec = told({**DEBERTA, "architectures": [f"DebertaV2{ending}"], "type_vocab_size": 0}, heads=("any",))
    assert (spec.family, spec.task, spec.max_length, spec.vocab_size) == ("traced", task, 512, 20)


@pytest.mark.parametrize(
    ("config", "files", "tokens"),
    [
        ({}, {}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514}, {}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 0}, {}, 512),
        ({}, {"sentence_bert_config.json": {"max_seq_length": 256}}, 256),
        ({}, {"sentence_roberta_config.json": {"max_seq_length": 1024}}, 512),
        ({}, {"sentence_bert_config.json": {"max_seq_length": None}}, 512),
        ({}, {"tokenizer_config.json": {"model_max_length": 128}}, 128),
        ({}, {"tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656}}, 512),
    ],
)
def test_the_length_is_what_a_text_can_use(
    told: Told, config: dict[str, Any], files: dict[str, Any], tokens: int
) -> None:
    """The report huggingface/transformers#14243: 514 positions of RoBERTa hold 512 tokens."""
    assert told({**BASE, **config}, files).max_length == tokens


def test_labels_come_in_the_order_of_their_ids(told: Told) -> None:
    names = {"2": "c", "0": "a", "10": "k", "1": "b", **{str(n): str(n) for n in range(3, 10)}}
    spec = told({**BASE, "architectures": [CLASSIFIER], "id2label": names})
    assert spec.labels == ("a", "b", "c", "3", "4", "5", "6", "7", "8", "9", "k")


def test_labels_nobody_named_are_numbered(told: Told) -> None:
    assert told({**BASE, "architectures": [CLASSIFIER]}).labels == ("LABEL_0", "LABEL_1")


ONE = {"architectures": [CLASSIFIER], "id2label": {"0": "LABEL_0"}}
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("config", "files", "activation"),
    [
        ({}, {}, "none"),
        ({"architectures": [CLASSIFIER]}, {}, "softmax"),
        ({"architectures": [CLASSIFIER], "problem_type": "multi_label_classification"}, {}, "sigmoid"),
        ({"architectures": ["BertForTokenClassification"]}, {}, "softmax"),
        ({"architectures": ["BertForQuestionAnswering"]}, {}, "softmax"),
        (ONE, {}, "sigmoid"),
        ({**ONE, "sbert_ce_default_activation_function": IDENTITY}, {}, "none"),
        ({**ONE, "sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.1"}}, {}, "none"),
        ({**ONE, "sentence_transformers": {"version": "4.0.1"}}, {}, "sigmoid"),
        (ONE, {"config_sentence_transformers.json": {"activation_fn": IDENTITY}}, "none"),
    ],
)
def test_scores_are_made_as_the_checkpoint_says(
    told: Told, config: dict[str, Any], files: dict[str, Any], activation: str
) -> None:
    assert told({**BASE, **config}, files).activation == activation


def test_a_regression_keeps_its_number(told: Told) -> None:
    spec = told({**BASE, **ONE, "problem_type": "regression"}, task="sequence-classification")
    assert (spec.activation, spec.labels) == ("none", ("LABEL_0",))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "max", "embedding_dimension": 8}, "max"),
        ({"pooling_mode": ["mean_sqrt_len_tokens"]}, "mean_sqrt_len_tokens"),
    ],
)
def test_pooling_is_read_in_its_old_and_new_form(told: Told, pooling: dict[str, Any], expected: str) -> None:
    files = {"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": pooling}
    spec = told(BASE, files)
    assert (spec.pooling, spec.normalize) == (expected, False)


def test_dense_modules_set_the_size_and_a_named_pooling_wins(told: Told) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling", "Dense", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        "2_Dense/config.json": {"in_features": 8, "out_features": 4},
    }
    spec = told(BASE, files, pooling="cls")
    assert (spec.pooling, spec.normalize, shapes(spec)) == ("cls", True, {"embedding": ("batch", 4)})


@pytest.mark.parametrize(
    ("dense", "text"),
    [
        ({"in_features": 16, "out_features": 4}, "2_Dense: takes 16 features, it is given 8"),
        ({"in_features": 8}, "2_Dense/config.json.out_features: is missing"),
        (
            {"in_features": 8, "out_features": 4, "activation_function": "my.Square"},
            "2_Dense/config.json: activation 'my",
        ),
    ],
)
def test_a_dense_module_that_does_not_fit_is_refused(told: Told, dense: dict[str, Any], text: str) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling", "Dense"),
        "1_Pooling/config.json": {"pooling_mode": "cls"},
        "2_Dense/config.json": dense,
    }
    with pytest.raises(InputError, match=text):
        told(BASE, files)


def test_sentence_transformers_files_make_a_language_model_an_embedder(told: Told) -> None:
    config = {**BASE, "architectures": ["BertForMaskedLM"]}
    with pytest.raises(
        InputError, match=r"architecture 'BertForMaskedLM' names no task; name one of: embeddings, "
    ):
        told(config)
    assert told(config, task="embeddings").pooling == "mean"
    files = {
        "modules.json": modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode": "cls"},
    }
    assert told(config, files).pooling == "cls"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key', which no graph",
        ),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"num_attention_heads": 3}, "3 heads do not divide a hidden size of 8"),
        ({"num_attention_heads": 0}, "config.json.num_attention_heads: is 0, expected at least 1"),
        ({"hidden_size": 0}, "config.json.hidden_size: is 0, expected at least 1"),
        ({"num_hidden_layers": -1}, "config.json.num_hidden_layers: is -1, expected at least 1"),
        ({"vocab_size": 0}, "config.json.vocab_size: is 0, expected at least 1"),
        ({"intermediate_size": 0}, "config.json.intermediate_size: is 0, expected at least 1"),
        (
            {"model_type": "roberta", "max_position_embeddings": 2},
            "config.json.max_position_embeddings: is 2, of which no text can use the first 2",
        ),
        ({"architectures": {"a": "b"}}, "config.json: architectures is dict, expected a list of names"),
        ({"num_labels": "3"}, "config.json: num_labels is '3', expected 1..1048576"),
        ({"num_labels": 10**12}, "config.json: num_labels is 1000000000000, expected 1..1048576"),
        ({**DEBERTA, "num_attention_heads": 0}, "num_attention_heads: is 0, expected at least 1"),
        ({"hidden_size": None}, "config.json.hidden_size: is missing"),
        ({"vocab_size": "20"}, "config.json.vocab_size: is str, expected int"),
        ({"model_type": None}, "model_type is None; expected a name such as 'bert'"),
        ({"id2label": {"0": "a", "2": "b"}}, r"id2label has ids \[0, 2\], expected 0..1"),
        ({"id2label": {"a": "0"}}, "expected labels by number"),
        (
            {**ONE, "sbert_ce_default_activation_function": "my.Square"},
            "activation 'my.Square' is not one of: Identity",
        ),
    ],
)
def test_what_no_graph_would_honour_is_refused_by_name(told: Told, config: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        told({**BASE, **config})


@pytest.mark.parametrize("task", [None, "embeddings", "sequence-classification"])
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"model_type": "beit", "image_size": 224, "patch_size": 16},
            "BertModel .model type 'beit'. reads images",
        ),
        ({"model_type": "clip", "vision_config": {"image_size": 224}}, "model type 'clip'. reads images"),
        (
            {"model_type": "ijepa", "architectures": ["IJepaForImageClassification"]},
            "something else than text",
        ),
        ({"model_type": "swin", "num_channels": 3}, "model type 'swin'. reads images"),
        ({"model_type": "whisper", "num_mel_bins": 80}, "reads sound"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, "reads something else than text"),
        ({"model_type": "layoutlm", "max_2d_position_embeddings": 1024}, "reads boxes on a page"),
    ],
)
def test_a_model_that_does_not_read_text_is_refused_by_name(
    told: Told, config: dict[str, Any], text: str, task: str | None
) -> None:
    """The report huggingface/transformers#33226: a traced ViT holds for the image size of the trace alone."""
    with pytest.raises(
        InputError,
        match=text
        + r".*; only models that read token ids alone, and classifiers of images .*, are built so far$",
    ):
        told({**BASE, **config}, **({"task": task} if task else {}))


@pytest.mark.parametrize("model_type", ["marian", "bart"])
def test_a_model_that_writes_text_is_refused_by_name(told: Told, model_type: str) -> None:
    config = {
        "model_type": model_type,
        "is_encoder_decoder": True,
        "architectures": ["XForConditionalGeneration"],
    }
    with pytest.raises(InputError, match=f"model type '{model_type}'. is an encoder with a decoder"):
        told({**BASE, **config})


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"task": "translation"}, "task 'translation' is not one of: embeddings, "),
        ({"pooling": "median"}, "pooling 'median' is not one of: mean, "),
        (
            {"task": "token-classification", "pooling": "cls"},
            "pooling 'cls' is for embeddings; the task is token-",
        ),
        ({"task": "reranking"}, "reranking needs a classifier with one label, the checkpoint has 2"),
    ],
)
def test_requests_that_do_not_fit_are_refused(told: Told, asked: dict[str, str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        told(BASE, **asked)


@pytest.mark.parametrize(
    ("task", "layer"),
    [
        ("sequence-classification", "classifier"),
        ("token-classification", "classifier"),
        ("question-answering", "qa_outputs"),
    ],
)
def test_a_task_without_its_head_is_refused(told: Told, task: str, layer: str) -> None:
    with pytest.raises(
        InputError, match=rf"task {task} needs the layer '{layer}', which .* \(BertModel\) do not have"
    ):
        told(BASE, heads=("embeddings.word_embeddings.weight",), task=task)


@pytest.mark.parametrize(
    ("kinds", "config", "text"),
    [
        (("Transformer", "WeightedLayerPooling"), {}, "module 1 is WeightedLayerPooling"),
        (("Transformer", "Pooling", "Normalize", "Dense"), {}, "module 3 is Dense in '3_Dense'; expected"),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode": "median"},
            "1_Pooling/config.json: pooling 'median' is not one",
        ),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode": ["max", "mean"]},
            "pools by max and mean at once; name one",
        ),
        (("Transformer", "Pooling"), {"include_prompt": False}, "include_prompt is false"),
    ],
)
def test_modules_that_are_not_written_are_refused_by_name(
    told: Told, kinds: tuple[str, ...], config: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        told(BASE, {"modules.json": modules(*kinds), "1_Pooling/config.json": config})
