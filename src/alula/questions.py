"""A user's rows as calls to a session, made exactly as serving makes them, and answers read as serving reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from alula.codecs import (
    DetectionCodec,
    ImagesCodec,
    Page,
    Pixels,
    RecognitionCodec,
    Row,
    TextCodec,
    answers,
    classes,
    each_image,
    entities,
    fit,
    images_codec,
    relevance,
    row_outputs,
    within,
)
from alula.core.check import Check, Reference
from alula.core.engine import Session
from alula.core.errors import InputError, RunError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds, axis_sizes
from alula.core.words import TENSORS
from alula.data import Dataset, Example, Kept, loaded
from alula.verify import BEST, Answer, Labelled, Prediction, Sample, UserMetric, judge, judge_labels

BUDGET = 0.004
"""The share that may be lost on the user's rows where nothing else is said."""

BATCH = 8

CELLS = 1024
"""Padded tokens of one call at most (a single row may be longer)."""

Item: TypeAlias = Row | Pixels | Feeds
"""One row as its codec made it; of a model that takes arrays, one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """The numbers of the rows that are asked together."""

    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """Every row of a data set, in calls of rows alike in length; a pair of texts to be embedded is two rows.

    Where calls are `whole`, each is as the user gave it: nothing fills it, and nothing of it is cut.
    """

    spec: ModelSpec
    data: Dataset
    rows: Sequence[Item]
    calls: tuple[Call, ...]
    collate: Callable[[Sequence[Item]], Feeds]
    whole: bool = False

    def feeds(self, call: Call) -> Feeds:
        """One call as an engine takes it; rows beyond the call's own only fill the smallest batch."""
        return self.collate([self.rows[at] for at in call.rows])

    def __iter__(self) -> Iterator[Feeds]:
        """Every call with its own rows alone: what calibration sees."""
        for call in self.calls:
            yield self._own(self.feeds(call), call)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The two rows of each example that is embedded as two."""
        if self.spec.task != "embeddings" or not self.data.paired:
            return ()
        return tuple((2 * at, 2 * at + 1) for at in range(len(self.data.examples)))

    def ask(self, session: Session) -> tuple[Feeds, ...]:
        """What a session answers, a mapping of arrays for each call, rows that only fill left out."""
        return tuple(self._own(session.run(self.feeds(call)), call) for call in self.calls)

    def some(self, count: int) -> tuple[int, ...]:
        """Numbers of calls that hold about so many rows, evenly spread over short and long ones."""
        rows = sum(len(call.rows) for call in self.calls)
        step = max(1, round(rows / max(count, 1)))
        return tuple(range(min(step // 2, len(self.calls) - 1), len(self.calls), step))

    def sample(self, at: int) -> Sample:
        """A call as a sample of the gate."""
        feeds = self.feeds(self.calls[at])
        return Sample(name=f"data, call {at}", feeds=feeds, tokens=not self.whole, given=True)

    def _own(self, arrays: Feeds, call: Call) -> Feeds:
        return arrays if self.whole else _first(arrays, len(call.rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What may be lost on which rows, by the task's own metrics or by one that the user wrote."""

    questions: Questions
    budget: float
    metric: UserMetric | None = None

    def judge(
        self, expected: Sequence[Feeds], given: Sequence[Feeds], reference: Reference
    ) -> tuple[Check, ...]:
        """Hold what a candidate gave for all calls to what the reference gave."""
        asked = self.questions
        by_labels = asked.data.labelled or self.metric is not None
        order = {row: place for place, row in enumerate(row for call in asked.calls for row in call.rows)}
        pairs = [(order[first], order[second]) for first, second in asked.pairs]
        compared = self.compared(range(len(asked.calls)), expected, given)
        verdicts = judge(compared, asked.spec, self.budget, reference, pairs=pairs, labelled=by_labels)
        if by_labels:
            labelled = Labelled(
                texts=[example.texts for example in asked.data.examples],
                labels=[example.label for example in asked.data.examples],
                expected=predictions(asked, expected),
                given=predictions(asked, given),
            )
            by_label = judge_labels(labelled, asked.spec, self.budget, reference, self.metric)
            verdicts = (*by_label, *verdicts)
        return tuple(verdict.kept(self.rows) for verdict in verdicts)

    @property
    def rows(self) -> str:
        """What checks on these rows know them by."""
        return self.questions.data.digest[:16]

    def compared(
        self, calls: Sequence[int], expected: Sequence[Feeds], given: Sequence[Feeds]
    ) -> list[Answer]:
        """What was expected and given for some calls, by their numbers."""
        asked = self.questions
        return [
            Answer(mask=asked.sample(at).mask[: len(asked.calls[at].rows)], expected=before, given=after)
            for at, before, after in zip(calls, expected, given, strict=True)
        ]


def questions_of(data: Dataset, spec: ModelSpec, profile: Profile, folder: Path) -> Questions:
    """The rows of a data set for an engine of this profile; `folder` holds the tokenizer or the image processor."""
    if spec.task == TENSORS:
        return _arrays(data, spec, profile)
    if spec.reads_text:
        return _texts(data, spec, profile, folder)
    codec = images_codec(folder, spec, profile=profile)
    rows = _decoded(codec, data)
    if isinstance(codec, DetectionCodec):
        return _pages(data, spec, rows, partial(codec.stacked, profile=profile))
    # Lines of like width belong together; images of a fixed size are all alike.
    widths = [rows[at].shape[2] for at in range(len(rows))]
    dims = spec.part("encoder").inputs[0].shape[1:]
    sizes = [
        {dim: size for dim, size in zip(dims, rows[at].shape, strict=True) if isinstance(dim, str)}
        for at in range(len(rows))
    ]
    calls = _grouped(widths, [profile.most("batch", each) for each in sizes], most=BATCH * max(widths))
    return Questions(
        spec=spec,
        data=data,
        rows=rows,
        calls=calls,
        collate=lambda items: codec.collate(_pixels(items), profile),
    )


def sizes_of(data: Dataset, spec: ModelSpec, folder: Path) -> dict[str, list[int]]:
    """By axis that rows decide, the sizes that these have: tokens of texts, pixels of images."""
    if spec.task == TENSORS:
        found = [axis_sizes(spec.parts[0].inputs, feeds) for feeds in loaded(spec.parts[0].inputs, data)]
        return {axis: [sizes[axis] for sizes in found] for axis in spec.parts[0].axes}
    if spec.reads_text:
        codec = TextCodec.open(folder, spec)
        return {"length": [len(row.ids) for example in data.examples for row in _encoded(codec, example)]}
    rows = _decoded(images_codec(folder, spec), data)
    _, *dims = spec.part("encoder").inputs[0].shape
    shapes = [rows[at].shape for at in range(len(rows))]
    return {dim: [shape[place] for shape in shapes] for place, dim in enumerate(dims) if isinstance(dim, str)}


def _pages(
    data: Dataset, spec: ModelSpec, rows: Kept[Pixels], collate: Callable[[Sequence[Pixels]], Feeds]
) -> Questions:
    """Every page by itself: few are of one size."""
    calls = tuple(Call(rows=(at,)) for at in range(len(rows)))
    return Questions(
        spec=spec, data=data, rows=rows, calls=calls, collate=lambda items: collate(_pixels(items))
    )


def _texts(data: Dataset, spec: ModelSpec, profile: Profile, folder: Path) -> Questions:
    served = within(spec, profile)
    codec = TextCodec.open(folder, served)
    rows = tuple(row for example in data.examples for row in _encoded(codec, example))
    lengths = [len(row.ids) for row in rows]
    calls = _grouped(lengths, [profile.most("batch", {"length": each}) for each in lengths], most=CELLS)
    return Questions(
        spec=spec,
        data=data,
        rows=rows,
        calls=calls,
        collate=lambda items: fit([item for item in items if isinstance(item, Row)], served, profile),
    )


def _decoded(codec: ImagesCodec, data: Dataset) -> Kept[Pixels]:
    """Images as pixels."""

    def read(example: Example) -> Pixels:
        if example.image is None:
            raise InputError(f"{data.path}: row {example.line} has no image")
        image = example.image
        place = str(image) if isinstance(image, Path) else f"{data.path}: the image of row {example.line}"
        found = codec.encode(image, place)
        return found.pixels if isinstance(found, Page) else found

    return Kept(data, read, lambda pixels: pixels.nbytes)


def _arrays(data: Dataset, spec: ModelSpec, profile: Profile) -> Questions:
    """Every call as it is; one that the profile does not take is refused by its file."""
    rows = loaded(spec.parts[0].inputs, data)
    for example, feeds in zip(data.examples, rows, strict=True):
        _refuse_outside(example.arrays, axis_sizes(spec.parts[0].inputs, feeds), profile)
    return Questions(
        spec=spec,
        data=data,
        rows=rows,
        calls=tuple(Call(rows=(at,)) for at in range(len(rows))),
        collate=lambda items: next(item for item in items if isinstance(item, Mapping)),
        whole=True,
    )


def _refuse_outside(path: Path | None, sizes: Mapping[str, int], profile: Profile) -> None:
    try:
        profile.check(sizes)
    except InputError as error:
        raise InputError(f"{path}: {error}; widen the profile, or leave the file out") from error


def predictions(asked: Questions, outputs: Sequence[Feeds]) -> list[Prediction]:
    """What answers say of each example, decoded; None where they cannot be."""
    single: dict[int, Prediction] = {}
    for call, batch in zip(asked.calls, outputs, strict=True):
        for at, one in zip(call.rows, _apart(asked, call, batch), strict=True):
            single[at] = _prediction(asked, at, one)
    if asked.spec.task != "embeddings":
        return [single[at] for at in range(len(asked.rows))]
    each = 2 if asked.data.paired else 1
    return [_stacked([single[at + i] for i in range(each)]) for at in range(0, len(asked.rows), each)]


def _apart(asked: Questions, call: Call, outputs: Feeds) -> Sequence[Feeds]:
    """The outputs of a call, row by row, or as they are where calls are whole."""
    if asked.whole:
        return [outputs]
    rows = [row for row in (asked.rows[at] for at in call.rows) if isinstance(row, Row)]
    return row_outputs(outputs, rows, asked.spec) if rows else each_image(outputs, len(call.rows))


def _pixels(items: Sequence[Item]) -> list[Pixels]:
    return [item for item in items if isinstance(item, np.ndarray)]


Decode: TypeAlias = Callable[[Feeds, Any, Example, ModelSpec], Prediction]


def _spans(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    found = entities(outputs, row, example.texts[0], spec)
    return tuple((entity.start, entity.end, entity.entity_group) for entity in found)


def _defined(outputs: Feeds) -> Prediction:
    """The arrays as they are, if no number of them is NaN."""
    floats = [array for array in outputs.values() if array.dtype.kind == "f"]
    return None if any(np.isnan(array).any() for array in floats) else outputs


def _answer(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    found = answers(outputs, row, example.texts[1])
    return found[0].answer if found else ""


def _classes(outputs: Feeds, row: Row, example: Example, spec: ModelSpec) -> Prediction:
    if len(spec.labels) == 1:
        return relevance(outputs, spec, raw=True)
    scored = classes(outputs, spec)
    if spec.activation == "sigmoid":
        return tuple(one.label for one in scored if one.score > 0.5)
    return scored[0].label


DECODE: Mapping[str, Decode] = {
    "embeddings": lambda outputs, row, example, spec: np.asarray(outputs["embedding"], np.float32),
    "sequence-classification": _classes,
    "reranking": lambda outputs, row, example, spec: relevance(outputs, spec, raw=True),
    "token-classification": _spans,
    "question-answering": _answer,
    "image-classification": lambda outputs, row, example, spec: tuple(
        scored.label for scored in classes(outputs, spec)[:BEST]
    ),
    "image-embeddings": lambda outputs, row, example, spec: np.asarray(outputs["embedding"], np.float32),
    "text-detection": lambda outputs, row, example, spec: _defined(outputs),
    "text-recognition": lambda outputs, row, example, spec: RecognitionCodec(spec).text(
        outputs["probabilities"]
    ),
    "tensors": lambda outputs, row, example, spec: _defined(outputs),
}
"""By task: the outputs of one row as what `verify.Prediction` describes."""


def _prediction(asked: Questions, at: int, outputs: Feeds) -> Prediction:
    each = len(asked.rows) // len(asked.data.examples)
    try:
        return DECODE[asked.spec.task](outputs, asked.rows[at], asked.data.examples[at // each], asked.spec)
    except (RunError, KeyError, IndexError):  # NaN, an output that is missing, or one of another shape
        return None


def _stacked(vectors: Sequence[Prediction]) -> Prediction:
    arrays = [vector for vector in vectors if isinstance(vector, np.ndarray)]
    whole = len(arrays) == len(vectors) and all(np.isfinite(array).all() for array in arrays)
    return np.stack(arrays) if whole else None


def _encoded(codec: TextCodec, example: Example) -> Iterator[Row]:
    """An example's rows exactly as serving makes them: a question keeps its words when its context is too long."""
    texts, task = example.texts, codec.spec.task
    if task == "embeddings" or len(texts) == 1:
        yield from (codec.encode(text) for text in texts)
    else:
        first, second = texts
        yield codec.encode_pair(first, second, only_second=task == "question-answering")


def _grouped(sizes: Sequence[int], beside: Sequence[int], most: int) -> tuple[Call, ...]:
    """Every row once, short ones first, in calls of at most BATCH rows and `most` padded cells.

    `beside` is how many rows an engine takes at once that are as long as each of these.
    """
    calls: list[Call] = []
    group: list[int] = []
    for at in sorted(range(len(sizes)), key=sizes.__getitem__):
        if group and (len(group) >= min(BATCH, beside[at]) or (len(group) + 1) * sizes[at] > most):
            calls.append(Call(rows=tuple(group)))
            group = []
        group.append(at)
    return (*calls, Call(rows=tuple(group)))


def _first(outputs: Feeds, count: int) -> Feeds:
    return {name: array[:count] for name, array in outputs.items()}
