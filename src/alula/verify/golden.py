"""Outputs of transformers that ship with this package, so that the demo model is proved where torch is absent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alula.core.tensor import Feeds
from alula.verify.samples import Sample

FOLDER = Path(__file__).parent / "stored"

BATCH = 8
ALONE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Golden:
    """What transformers answered for one checkpoint.

    `digest` is `ModelSpec.digest`, so changed weights find no golden outputs; `made_with` names the versions
    and the weights file.
    """

    name: str
    digest: str
    made_with: dict[str, str]
    texts: tuple[str, ...]
    samples: tuple[Sample, ...]
    outputs: tuple[Feeds, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One text, its token ids, and the embedding of the row alone."""

    text: str
    ids: tuple[int, ...]
    embedding: NDArray[np.float32]


def names() -> tuple[str, ...]:
    """The checkpoints that outputs ship for."""
    return tuple(path.stem for path in _files())


def find(digest: str) -> Golden | None:
    """The outputs for the checkpoint with this digest, if they ship."""
    for path in _files():
        made_with, rows = load(path)
        if made_with["digest"] == digest:
            samples, outputs = _batches(rows, int(made_with["pad_id"]), made_with["inputs"].split())
            texts = tuple(row.text for row in rows)
            return Golden(
                name=path.stem,
                digest=digest,
                made_with=made_with,
                texts=texts,
                samples=samples,
                outputs=outputs,
            )
    return None


def load(path: Path) -> tuple[dict[str, str], tuple[Row, ...]]:
    """What `save` wrote."""
    with np.load(path) as stored:
        made_with = json.loads(stored["made_with"].tobytes())
        texts = json.loads(stored["texts"].tobytes())
        sizes, ids, embeddings = stored["sizes"], stored["ids"], stored["embedding"]
    ends = np.cumsum(sizes)
    return made_with, tuple(
        Row(text, tuple(ids[end - size : end].tolist()), embedding)
        for text, size, end, embedding in zip(texts, sizes, ends, embeddings, strict=True)
    )


def save(path: Path, made_with: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Write golden outputs; `made_with` holds `digest`, `pad_id`, `inputs` and whatever says how they were made."""
    np.savez_compressed(
        path,
        made_with=_json(dict(made_with)),
        texts=_json([row.text for row in rows]),
        sizes=np.array([len(row.ids) for row in rows], dtype=np.int64),
        ids=np.concatenate([np.array(row.ids, dtype=np.uint32) for row in rows]),
        embedding=np.stack([row.embedding for row in rows]),
    )


def _files() -> list[Path]:
    return sorted(FOLDER.glob("*.npz"))


def _json(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), dtype=np.uint8)


def _batches(
    rows: Sequence[Row], pad_id: int, inputs: Sequence[str]
) -> tuple[tuple[Sample, ...], tuple[Feeds, ...]]:
    """Ragged batches first, then as many rows alone, so that a profile of one row has evidence too."""
    size = len(rows) - ALONE
    groups = [range(start, min(start + BATCH, size)) for start in range(0, size, BATCH)]
    groups += [range(row, row + 1) for row in range(size, len(rows))]
    samples, outputs = [], []
    for group in groups:
        chosen = [rows[index] for index in group]
        name = f"texts {group[0]}-{group[-1]}"
        samples.append(Sample(name=name, feeds=_feeds(chosen, pad_id, inputs)))
        outputs.append({"embedding": np.stack([row.embedding for row in chosen])})
    return tuple(samples), tuple(outputs)


def _feeds(rows: Sequence[Row], pad_id: int, inputs: Sequence[str]) -> Feeds:
    """Rows padded right; the texts are single ones, so every segment is 0."""
    shape = len(rows), max(len(row.ids) for row in rows)
    feeds = {name: np.zeros(shape, dtype=np.int64) for name in inputs}
    feeds["input_ids"][:] = pad_id
    for index, row in enumerate(rows):
        feeds["input_ids"][index, : len(row.ids)] = row.ids
        feeds["attention_mask"][index, : len(row.ids)] = 1
    return feeds
