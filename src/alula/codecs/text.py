"""A HuggingFace tokenizer, held to what the model takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

from alula.codecs.beginnings import LEAST, Read, lengths_to_read, suffices
from alula.codecs.lengths import Cut, cut_first, cut_longest, cut_second
from alula.codecs.rows import SPECIAL, Row, collate
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds

T = TypeVar("T")

LONG = 4_000
"""Characters from which on the interpreter is set free while the tokenizer works; only its batch call does that."""

# In the order of transformers, which says what becomes of " 's ' s".
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
# Their beginnings; and an apostrophe, the space behind which may be gone already.
_UNSETTLED = (*sorted({spaced[:end] for spaced in _SPACED for end in range(1, len(spaced))}), "'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """A token and the code points of the text it comes from; a special one comes from none and has its name."""

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


class TextCodec:
    """Texts to rows. Safe to use from several threads: nothing changes after it is opened."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        *,
        types: bool = True,
        left: bool = False,
        tidies: bool = False,
    ) -> None:
        # Stored truncation and padding belong to whoever trained the tokenizer (MiniLM's pads to 128).
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._types = types
        self._left = left
        self._tidies = tidies
        self.spec = spec

    @classmethod
    def open(cls, folder: Path, spec: ModelSpec) -> TextCodec:
        """Read `tokenizer.json`, and from `tokenizer_config.json` the truncation side and the inputs it gives."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"no tokenizer.json in {folder}; make one with transformers: "
                "AutoTokenizer.from_pretrained(MODEL, use_fast=True).save_pretrained(FOLDER)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"{file} is not a tokenizer that can be read: {error}") from error
        config = read_config(folder / "tokenizer_config.json")
        names = config.get("model_input_names")
        return cls(
            tokenizer,
            spec,
            types=not isinstance(names, list) or "token_type_ids" in names,
            left=config.get("truncation_side") == "left",
            # Made for WordPiece; transformers too leaves the texts of BPE as they are, whatever the file says.
            tidies=config.get("clean_up_tokenization_spaces") is True
            and not isinstance(tokenizer.model, BPE),
        )

    def encode(self, text: str, *, truncate: bool = True, places: bool = True) -> Row:
        """One text as a row; without `places` it says of no token where it comes from, which takes less time."""
        if places or len(text) > LEAST:
            return self._row(*self._beginning(valid_text(text)), cut_first, truncate, places)
        encoding = self._tokenizer.encode_batch_fast([valid_text(text)])[0]
        return self._row(encoding, True, cut_first, truncate, places=False)

    def encode_pair(
        self, first: str, second: str, *, truncate: bool = True, only_second: bool = False
    ) -> Row:
        """Two texts as one row; cuts the longer one first, or only the second (a question keeps its words)."""
        read = self._beginning(valid_text(first), valid_text(second))
        return self._row(*read, cut_second if only_second else cut_longest, truncate)

    def encode_ids(self, ids: Sequence[int], *, truncate: bool = True) -> Row:
        """Ids that the caller made, taken as they are."""
        if not ids:
            raise InputError("the list of token ids is empty; expected at least one")
        limit = self.spec.max_length
        if len(ids) > limit and not truncate:
            raise _too_long(len(ids), limit)
        kept = tuple(ids[-limit:] if self._left else ids[:limit])
        self._refuse_unknown(kept)
        return Row(ids=kept, type_ids=(0,) * len(kept), given=len(ids))

    def prompt(self, text: str, *, rendered: bool = False, most: int | None = None) -> tuple[int, ...]:
        """The tokens of a text that is to be gone on with, none cut off; a long one of more than `most` is refused.

        Special tokens are added as the checkpoint has it; a chat that is `rendered` has them from its template.
        """
        text = valid_text(text)
        for size in lengths_to_read([text], most) if most is not None else [len(text)]:
            # One way for long and short: only the batch call sets the interpreter free.
            encoding = self._tokenizer.encode_batch([text[:size]], add_special_tokens=not rendered)[0]
            if most is not None and size < len(text) and suffices(_read(encoding), [text], size, most + 1):
                raise InputError(f"the prompt has more than {most} tokens, which is what the model takes")
        ids = tuple(encoding.ids)
        self._refuse_unknown(ids)
        return ids

    def tokens(self, text: str, *, special: bool = True) -> list[Token]:
        """All tokens of a text, none cut off; without the `special` ones that the checkpoint adds if not asked for."""
        text = valid_text(text)
        encoding = self._encoding(text)
        rows = zip(encoding.ids, encoding.sequence_ids, encoding.offsets, strict=True)
        return [
            Token(id=token, text=self.called(token), special=True)
            if source is None
            else Token(id=token, text=text[start:stop], special=False, start=start, stop=stop)
            for token, source, (start, stop) in rows
            if special or source is not None
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return _tidied(text) if self._tidies else text

    @property
    def unsettled(self) -> tuple[str, ...]:
        """The ends of a text that `decode` may give otherwise once more tokens have come."""
        return _UNSETTLED if self._tidies else ()

    def called(self, token: int) -> str:
        """A token by its name in the vocabulary, which special ones have too."""
        return self._tokenizer.id_to_token(token) or f"<{token}>"

    def collate(self, rows: Sequence[Row], length: int | None = None) -> Feeds:
        """The rows as one padded batch."""
        return collate(rows, self.spec, length)

    def _beginning(self, *texts: str) -> tuple[Encoding, bool]:
        """As much of the texts as has the tokens that the model takes, and whether that is all of them."""
        limit, longest = self.spec.max_length, max(map(len, texts))
        if longest <= LEAST:
            return self._encoding(*texts), True
        for size in lengths_to_read(texts, limit) if not self._left else ():
            if size == longest:
                break
            encoding = self._encoding(*(text[:size] for text in texts))
            if suffices(_read(encoding), texts, size, limit):
                return encoding, False
        return self._encoding(*texts), True

    def _encoding(self, first: str, second: str | None = None) -> Encoding:
        if len(first) + len(second or "") < LONG:
            return self._tokenizer.encode(first, second)
        return self._tokenizer.encode_batch([first if second is None else (first, second)])[0]

    def _row(self, encoding: Encoding, whole: bool, cut: Cut, truncate: bool, places: bool = True) -> Row:
        ids, type_ids = encoding.ids, encoding.type_ids if self._types else None
        given, limit = len(ids), self.spec.max_length
        if given > limit and not truncate:
            raise _too_long(given, limit, whole)
        sources = _sources(encoding) if places or given > limit else ()
        keep = cut(sources, limit, self._left) if given > limit else None
        row = Row(
            ids=_kept(ids, keep),
            type_ids=_kept(type_ids, keep) if type_ids is not None else (0,) * min(given, limit),
            offsets=_kept(encoding.offsets, keep) if places else (),
            sources=_kept(sources, keep) if places else (),
            words=_kept([_word(word) for word in encoding.word_ids], keep) if places else (),
            given=given,
        )
        self._refuse_unknown(row.ids)
        return row

    def _refuse_unknown(self, ids: tuple[int, ...]) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.spec.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.spec.vocab_size)
            raise InputError(f"token id {wrong}; the model knows 0..{self.spec.vocab_size - 1}")


def _read(encoding: Encoding) -> Read:
    return encoding.sequence_ids, encoding.word_ids, encoding.offsets


def valid_text(text: str) -> str:
    """`text`, unless it holds half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InputError(
            f"text has the lone surrogate U+{code:04X} at character {error.start}; "
            "expected a pair of them or none"
        ) from None
    return text


def _tidied(text: str) -> str:
    """The text without the spaces that English does not have before marks and contractions."""
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text


def _sources(encoding: Encoding) -> tuple[int, ...]:
    return tuple(SPECIAL if source is None else source for source in encoding.sequence_ids)


def _kept(values: Sequence[T], keep: Sequence[int] | None) -> tuple[T, ...]:
    """Those at the places that are kept, or all."""
    return tuple(values) if keep is None else tuple(values[at] for at in keep)


def _word(word: int | None) -> int:
    return SPECIAL if word is None else word


def _too_long(given: int, limit: int, whole: bool = True) -> InputError:
    return InputError(f"text has {given} tokens{'' if whole else ' and more'}; the model takes {limit}")


def read_config(file: Path) -> dict[str, Any]:
    """An object in a JSON file beside the tokenizer; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{file} holds {type(config).__name__}, expected an object")
    return config
