"""The small tokenizer: byte-level like HunyuanOCR's, a token for each character that pages have, its special tokens.

    python -m training.tokenizer -o training/build/tokenizer

Merges are those alone that join the bytes of a character, so letters and digits stay single tokens; any other
character is its bytes. Each published prompt is one token, and so is each tag of a table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from training.characters import CHINESE, PUNCTUATION, SIGNS
from training.prompts import pieces

BEGIN = "<｜hy_begin▁of▁sentence｜>"
END = "<｜hy_end▁of▁sentence｜>"
PAD = "<｜hy_▁pad▁｜>"
USER = "<｜hy_User｜>"
ASSISTANT = "<｜hy_Assistant｜>"


def placeholder(number: int) -> str:
    """One of the tokens that HunyuanOCR leaves for later, and uses for images and for its end."""
    return f"<｜hy_place▁holder▁no▁{number}｜>"


DONE, SYSTEM = placeholder(2), placeholder(3)
IMAGE_BEGIN, IMAGE_END, IMAGE, NEWLINE = (placeholder(number) for number in (100, 101, 102, 103))
SPECIAL = (BEGIN, END, PAD, USER, ASSISTANT, DONE, SYSTEM, IMAGE_BEGIN, IMAGE_END, IMAGE, NEWLINE)
TAGS = ("<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>")
SIDE = 64
"""The vocabulary is filled up to a multiple of this, with placeholders."""

TEMPLATE = """{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}\
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}\
{% endfor %}{% endif %}<｜hy_place▁holder▁no▁3｜>{% else %}{% if message.content is string %}{{ message.content }}\
{% else %}{% for part in message.content %}{% if part.type in ['image', 'image_url'] %}<｜hy_place▁holder▁no▁100｜>\
<｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\
{% if message.role == 'user' %}<｜hy_User｜>{% else %}<｜hy_Assistant｜>{% endif %}{% endif %}{% endfor %}"""
"""The roles as HunyuanOCR has them: what ends a message names who wrote it."""


def build() -> Tokenizer:
    """The tokenizer, always the same."""
    shown = _bytes_shown()
    vocabulary = {character: number for number, character in enumerate(sorted(shown.values()))}
    merges: list[tuple[str, str]] = []
    for character in dict.fromkeys(SIGNS + PUNCTUATION + CHINESE):
        first, *rest = (shown[byte] for byte in character.encode())
        for byte in rest:
            if first + byte not in vocabulary:
                vocabulary[first + byte] = len(vocabulary)
                merges.append((first, byte))
            first += byte
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Longer ones first: where one begins another, the longer is meant.
    words = sorted((*pieces(), *TAGS), key=len, reverse=True)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    spare = -(tokenizer.get_vocab_size() + len(SPECIAL)) % SIDE
    names = (*SPECIAL, *(placeholder(104 + number) for number in range(spare)))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def id_of(tokenizer: Tokenizer, name: str) -> int:
    """The number of a token that there is."""
    found = tokenizer.token_to_id(name)
    if found is None:
        raise KeyError(f"the tokenizer has no token {name!r}")
    return int(found)


def _bytes_shown() -> dict[int, str]:
    """The character that byte-level vocabularies show for a byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def write_tokenizer(folder: Path) -> Tokenizer:
    """The files that a checkpoint has of its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": ASSISTANT,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "padding_side": "left",
        "extra_special_tokens": {
            "image_token": IMAGE,
            "image_start_token": IMAGE_BEGIN,
            "image_end_token": IMAGE_END,
        },
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return tokenizer


def main() -> None:
    """Write the files of the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    tokenizer = write_tokenizer(parser.parse_args().output)
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
