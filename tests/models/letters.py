"""A tokenizer with a token for every letter, for small models, and the files that lie beside it."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<s>", "</s>", "<eot>")
LETTERS = (*SPECIAL, *string.ascii_lowercase, *" .:\n", *string.ascii_uppercase, *string.digits)


def letters(
    to: Path,
    template: str | None = None,
    defaults: Mapping[str, object] | None = None,
    *,
    size: int = 33,
    around: str = "<s> $A",
) -> Path:
    """Begins a text with token 0, unless `around` says otherwise."""
    to.mkdir(exist_ok=True)
    vocab = {letter: at for at, letter in enumerate(LETTERS[:size])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="."))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(token, vocab[token]) for token in SPECIAL if token in around]
    )
    tokenizer.save(str(to / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "chat_template": template}
    (to / "tokenizer_config.json").write_text(json.dumps(said))
    if defaults is not None:
        (to / "generation_config.json").write_text(json.dumps(defaults))
    return to
