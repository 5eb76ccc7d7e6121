"""Small models with random weights, as whole checkpoints: tokenizer, settings, and weights from transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

CLASSES = {
    "embeddings": "AutoModel",
    "sequence-classification": "AutoModelForSequenceClassification",
    "reranking": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
WORDS = (
    *("the", "cat", "sat", "on", "mat", "who", "where", "is", "a", "dog", "in", "rome", "lives", "ada"),
    *("wrote", "code", "stocks", "fell", "monday", "guitar", "plays", "man", "red", "green", "blue"),
)
# Ids as the two kinds of checkpoint have them: RoBERTa's padding is 1, and its positions begin behind that.
_SPECIAL: Mapping[str, tuple[str, str, str, str]] = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>"),
}
_SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 4 + len(WORDS),
}
_OF_TYPE: Mapping[str, Mapping[str, Any]] = {
    "bert": {"max_position_embeddings": 64},
    "distilbert": {"max_position_embeddings": 64, "hidden_dim": 48},
    "electra": {"max_position_embeddings": 64, "embedding_size": 16},
    "mpnet": {"max_position_embeddings": 66, "pad_token_id": 0},
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1},
    "deberta-v2": {
        "max_position_embeddings": 64,
        "type_vocab_size": 0,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "max_relative_positions": -1,
    },
}


def checkpoint(to: Path, model_type: str = "bert", task: str = "embeddings", **settings: Any) -> Path:
    """A folder with everything that `alula build` reads."""
    config = transformers.AutoConfig.for_model(model_type, **{**_SIZES, **_OF_TYPE[model_type], **settings})
    torch.manual_seed(0)
    model = getattr(transformers, CLASSES[task]).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(to)
    roberta = model_type == "roberta"
    tokenizer(roberta=roberta).save(str(to / "tokenizer.json"))
    pad, unknown, first, last = _SPECIAL["bert"]
    if roberta:
        first, pad, last, unknown = _SPECIAL["roberta"]
    named = {"pad_token": pad, "unk_token": unknown, "cls_token": first, "sep_token": last}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (to / "tokenizer_config.json").write_text(json.dumps(kind), "utf-8")
    return to


def with_outliers(to: Path, layers: Sequence[str]) -> Path:
    """A BERT that computes as before, but one channel of what these layers (`....attention.output.dense`) read is a
    thousand times larger.

    Attention gives that channel, so no smoothing evens it out: eight bits for all channels are too few.
    """
    folder = checkpoint(to)
    weights = load_file(folder / "model.safetensors")
    for layer in layers:
        value = layer.replace(".output.dense", ".self.value")
        weights[f"{value}.weight"][3] *= 1000
        weights[f"{value}.bias"][3] *= 1000
        weights[f"{layer}.weight"][:, 3] /= 1000
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tokenizer(*, roberta: bool = False) -> Tokenizer:
    """Whole words between white space, with the special tokens of BERT or RoBERTa around them."""
    words = (*_SPECIAL["roberta" if roberta else "bert"], *WORDS)
    ids = {word: at for at, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>" if roberta else "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    first, last = ("<s>", "</s>") if roberta else ("[CLS]", "[SEP]")
    pair = f"{first} $A {last} {last} $B {last}" if roberta else f"{first} $A {last} $B:1 {last}:1"
    special = [(first, ids[first]), (last, ids[last])]
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=pair, special_tokens=special
    )
    return made
