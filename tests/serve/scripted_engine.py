"""An engine process whose model does what the words of a text say. Started by tests in place of the real one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import parrot
from parrot import Parrot

from alula.bundles import Bundle
from alula.core.decoding import Room
from alula.core.engine import Session
from alula.core.errors import DeviceLostError, InputError, OutOfMemoryError, RunError
from alula.core.tensor import Array, Feeds
from alula.core.words import IMAGE_TASKS, TENSORS
from alula.engines import fake
from alula.generate import Generator, Limits
from alula.serve.engine_process import main
from alula.serve.process import Opening

ACTS = ("slow", "hang", "crash", "nan", "wrong", "broken", "bug", "lost")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "hello", "world", "rome", "lives", *ACTS)
BLOCK_TOKENS = 8
IDS = {word: at for at, word in enumerate(WORDS)}


def exists(variable: str) -> bool:
    """Whether there is the file that a variable names: what an engine does may change while it runs."""
    return variable in os.environ and Path(os.environ[variable]).exists()


def obey(feeds: Feeds) -> None:
    if os.environ.get("SCRIPTED_DEAF"):
        return
    ids = feeds["input_ids"]
    if (ids == IDS["slow"]).any():
        while not Path(os.environ["SCRIPTED_GATE"]).exists():
            time.sleep(0.01)
    if (ids == IDS["hang"]).any():
        time.sleep(3600)
    if (ids == IDS["crash"]).any():
        os._exit(3)
    if (ids == IDS["wrong"]).any():
        raise InputError("axis 'length' is 9; built for 1..8")
    if (ids == IDS["broken"]).any():
        raise RunError("bad kernel")
    if (ids == IDS["lost"]).any():
        raise DeviceLostError("the GPU is lost to this process")
    if (ids == IDS["bug"]).any():
        raise KeyError("nobody foresaw this")


def outputs(feeds: Feeds) -> Feeds:
    """Every output a task may have, told from the ids alone."""
    obey(feeds)
    if exists("SCRIPTED_FAILS"):
        raise RunError("out of memory")
    ids, mask = (np.asarray(feeds[name], np.int64) for name in ("input_ids", "attention_mask"))
    total = (ids * mask).sum(1, keepdims=True).astype(np.float32)
    count = mask.sum(1, keepdims=True).astype(np.float32)
    embedding = np.concatenate([total, count, np.ones_like(total), -count], axis=1)
    if not os.environ.get("SCRIPTED_DEAF"):
        embedding[(ids == IDS["nan"]).any(1)] = np.nan
    if exists("SCRIPTED_WRONG"):
        embedding = -embedding
    peak = np.where(ids == IDS["rome"], 8.0, 0.0).astype(np.float32)
    return {
        "embedding": embedding,
        "logits": embedding[:, :3] / 10,
        "score": total / 100 - 1,
        "tokens": np.stack([4 - peak, peak, peak * 0], axis=2),
        "start_logits": peak,
        "end_logits": peak,
        "rows": np.full((len(ids), 1), len(ids), np.float32),
    }


def writing(opening: Opening) -> Generator:
    """A parrot, in a cache that `cache_bytes` makes a token a byte large."""
    blocks = (opening.cache_bytes or 65_536) // BLOCK_TOKENS
    limits = Limits(
        sequences=opening.sequences,
        step_tokens=max(64, opening.sequences),
        chunk_tokens=48,
        block_tokens=BLOCK_TOKENS,
        blocks=blocks,
        waiting=opening.taken,
    )
    room = Room(sequences=limits.sequences, blocks=limits.blocks, block_tokens=limits.block_tokens)
    return Generator(Parrot(room), limits, parrot.tokenizer().decode)


def levels(feeds: Feeds) -> Feeds:
    """How much of each colour there is in an image, and how many images came along."""
    pixels = np.asarray(feeds["pixel_values"], np.float32)
    rows = np.full(len(pixels), len(pixels), np.float32)
    found = np.stack([*pixels.mean((2, 3)).T, rows], axis=1)
    return {"logits": found, "embedding": found}


def columns(feeds: Feeds) -> Feeds:
    """A letter for every column of a line: a blank where it is dark, the darkest letter first.

    Less sure of them in a wide batch, as a model is that looks at all of it.
    """
    brightness = np.asarray(feeds["x"], np.float32).mean((1, 2))
    letters = np.clip((brightness + 1) * 2, 0, 4).round().astype(np.int64)
    letters[brightness == 0] = 0  # what a batch is padded with
    sure = np.float32(1 - brightness.shape[1] / 1000)
    return {"probabilities": np.eye(5, dtype=np.float32)[letters] * sure}


def bright(feeds: Feeds) -> Feeds:
    """Text wherever a page is bright; of a page with a blue corner nobody can say."""
    pixels = np.asarray(feeds["x"], np.float32)
    found = np.where(pixels.mean(1, keepdims=True) > 0.9, np.float32(0.9), np.float32(0.01))
    found[(pixels[:, :2, 0, 0] == (1, 0)).all(1)] = np.nan
    return {"probabilities": found}


def sums(feeds: Feeds) -> Feeds:
    """Rows with a number added, and how many there were."""
    x, k = np.asarray(feeds["x"], np.float32), np.asarray(feeds["k"], np.float32)
    return {"sum": x + k[:, None], "rows": np.full((len(x), 1), len(x), np.float32)}


_BALLAST: list[Array] = []

SEEN = {"text-recognition": columns, "text-detection": bright}


def opener(root: Path, opening: Opening) -> Session | Generator:
    if os.environ.get("SCRIPTED_REFUSES"):
        raise InputError(f"{root}: the script refuses")
    if exists("SCRIPTED_LOST"):
        raise DeviceLostError("the GPU is lost")
    if os.environ.get("SCRIPTED_DIES") or exists("SCRIPTED_DIES_ON"):
        os._exit(7)
    _BALLAST.append(np.ones(int(os.environ.get("SCRIPTED_WEIGHS", "0")), np.uint8))
    bundle = Bundle.open(root)
    if bundle.model.writes:
        return writing(opening)
    engine = bundle.engine("encoder")
    if bundle.model.task in IMAGE_TASKS:
        seen = SEEN.get(bundle.model.task, levels)
        return fake.session(engine.inputs, engine.outputs, engine.plan.profile, seen)
    if bundle.model.task == TENSORS:
        return fake.session(engine.inputs, engine.outputs, engine.plan.profile, sums)
    named = {"reranking": {"logits": "score"}, "token-classification": {"logits": "tokens"}}
    names = named.get(bundle.model.task, {})

    def function(feeds: Feeds) -> Feeds:
        if exists("SCRIPTED_FULL") and Path(os.environ["SCRIPTED_FULL"]).read_text() == root.name:
            raise OutOfMemoryError("GPU out of memory: 100 MiB asked for")
        every = outputs(feeds)
        given: dict[str, Array] = {
            spec.name: every[names.get(spec.name, spec.name)] for spec in engine.outputs
        }
        return given

    return fake.session(engine.inputs, engine.outputs, engine.plan.profile, function)


if __name__ == "__main__":
    main(sys.argv[1:], opener)
