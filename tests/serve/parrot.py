"""A model that writes: it says its prompt again, letter by letter. A real `Decoding`, whose prompts are also orders.

A prompt ends at its first "|"; what stands before it is said again, and then it ends. In it `~` stands for doing so for
ever, and the words of `ORDERS` have their way with the engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from alula.core.decoding import NOTHING_GIVEN, Logits, Room, Work
from alula.core.errors import DeviceLostError, RunError
from alula.core.tensor import Feeds

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
END, START = len(LETTERS), len(LETTERS) + 1
VOCABULARY = len(LETTERS) + 2
BAR = LETTERS.index("|")
ORDERS = ("GATE", "CRASH", "HANG", "NAN", "BROKEN", "LOST")
STEP_S = float(os.environ.get("SCRIPTED_STEP_S", "0.002"))


def tokenizer() -> Tokenizer:
    """A token for every byte, so that a character may take several."""
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(LETTERS)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>", "<start>"])
    return made


class Parrot:
    """Keeps the tokens of every sequence; logits have their peak at the next one, and fall off from there."""

    def __init__(self, room: Room) -> None:
        self.vocabulary = VOCABULARY
        self.room = room
        self._tokens: dict[int, list[int]] = {}
        self._decode = tokenizer().decode

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        assert sequence not in self._tokens, f"{sequence} is here already"
        assert len(self._tokens) < self.room.sequences, "too many sequences"
        # What an encoder reads is before all else, as though it were a prompt.
        self._tokens[sequence] = [int(token) for token in given["input_ids"][0]] if given else []

    def step(self, work: Sequence[Work]) -> Logits:
        assert len({each.sequence for each in work}) == len(work)
        time.sleep(STEP_S)
        for each in work:
            self._tokens[each.sequence].extend(each.tokens)
        held = sum(len(tokens) for tokens in self._tokens.values())
        assert held <= self.room.tokens, f"{held} tokens in a cache of {self.room.tokens}"
        return np.stack(
            [self._logits(self._tokens[each.sequence]) for each in work if each.answers]
            or [np.zeros(VOCABULARY, np.float32)]
        )[: sum(each.answers for each in work)]

    def release(self, sequence: int) -> None:
        self._tokens.pop(sequence, None)

    def close(self) -> None:
        self._tokens.clear()

    def _logits(self, tokens: list[int]) -> Logits:
        known = [token for token in tokens if token < END]
        prompt = known[: known.index(BAR)] if BAR in known else known
        said = len(known) - len(prompt) - 1
        text = self._decode(prompt)
        _obey(text)
        if "NAN" in text and said == 2:
            return np.full(VOCABULARY, np.nan, np.float32)
        following = [*prompt, END] if "~" not in text else prompt
        peak = following[said % len(following)]
        logits: Logits = -np.abs(np.arange(VOCABULARY, dtype=np.float32) - peak) * 3
        return logits


def _obey(text: str) -> None:
    if "GATE" in text:
        while not Path(os.environ["SCRIPTED_GATE"]).exists():
            time.sleep(0.01)
    if "HANG" in text:
        time.sleep(3600)
    if "CRASH" in text:
        os._exit(3)
    if "BROKEN" in text:
        raise RunError("bad kernel")
    if "LOST" in text:
        raise DeviceLostError("the GPU is lost to this process")
