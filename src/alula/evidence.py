"""What a bundle is judged by: samples, and what the best reference at hand answers for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from alula import families
from alula.bundles import Stored
from alula.core.check import REFERENCES, Check, Reference, reference_named
from alula.core.engine import Session
from alula.core.errors import InputError, MissingExtraError, RunError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.core.words import TENSORS, choice
from alula.verify import CALIBRATED, Sample, alone, compare, draw, golden, held_to, invariance, texts_for

if TYPE_CHECKING:
    from alula.questions import Promise

TEXT_BATCH = 8

SOME_ROWS = 32
"""Rows of the user's data that stand in for the texts that ship with the package, where a model reads no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Samples, and the rows of a promise where there is one, with the outputs of one reference."""

    reference: Reference
    samples: tuple[Sample, ...]
    outputs: tuple[Feeds, ...]
    promise: Promise | None = None
    promised: tuple[Feeds, ...] = ()

    def judge(
        self, candidate: Session, spec: ModelSpec, precision: str, *, promised: bool = False
    ) -> tuple[Check, ...]:
        """How far the candidate is from this reference; `promised` says that a promise decides, here or beside it."""
        held = held_to(precision, promised=promised, comes_in=spec.comes_in)
        checks: tuple[Check, ...] = ()
        if pairs := self.pairs(precision):
            outputs = [output for _, output in pairs]
            samples = [sample for sample, _ in pairs]
            checks = compare(outputs, candidate, samples, _giving(spec, outputs[0]), held, self.reference)
        if self.promise is None:
            return checks
        given = self.promise.questions.ask(candidate)
        return (*self.promise.judge(self.promised, given, self.reference), *checks)

    def pairs(self, precision: str) -> list[tuple[Sample, Feeds]]:
        """The samples that say something about a precision: random ids say nothing about one that was calibrated."""
        pairs = list(zip(self.samples, self.outputs, strict=True))
        if precision not in CALIBRATED:
            return pairs
        real = [pair for pair in pairs if not pair[0].drawn]
        return real or self._promised_pairs()

    def stored(self, precision: str, most: int) -> Stored:
        """As many samples as fit into so many bytes, smallest first; the user's only where there are no others."""
        size = 0
        feeds: list[Feeds] = []
        outputs: list[Feeds] = []
        pairs = self.pairs(precision)
        pairs = [pair for pair in pairs if not pair[0].given] or pairs
        for sample, output in sorted(pairs, key=lambda pair: sum(array.nbytes for array in pair[1].values())):
            size += sum(array.nbytes for array in (*sample.feeds.values(), *output.values()))
            if feeds and size > most:
                break
            feeds.append(sample.feeds)
            outputs.append(output)
        return Stored(reference=self.reference, feeds=tuple(feeds), outputs=tuple(outputs))

    def _promised_pairs(self) -> list[tuple[Sample, Feeds]]:
        """Calls of the user's data that no filling is in, where there are no other real samples."""
        if self.promise is None:
            return []
        asked = self.promise.questions
        pairs = [(asked.sample(at), self.promised[at]) for at in asked.some(SOME_ROWS)]
        return [(sample, outputs) for sample, outputs in pairs if len(sample.mask) == _rows(outputs)]


def _giving(spec: ModelSpec, outputs: Feeds) -> ModelSpec:
    """The model with no more outputs than a reference has of it."""
    first, *others = spec.parts
    kept = tuple(output for output in first.outputs if output.name in outputs)
    return (
        spec
        if len(kept) == len(first.outputs)
        else replace(spec, parts=(replace(first, outputs=kept), *others))
    )


def _rows(outputs: Feeds) -> int:
    return len(next(iter(outputs.values())))


def choose(wanted: str, spec: ModelSpec) -> Reference:
    """The strongest reference there is, or the one that was asked for by name, or an error that says why not."""
    choice("reference", wanted, ("auto", *REFERENCES))
    from_onnx = spec.family == families.ONNX
    if wanted == "auto":
        if from_onnx:
            return "onnx-file"
        if pytorch_installed():
            return "pytorch"
        return "golden" if golden_of(spec) else "own-graph"
    reference = reference_named(wanted)
    if from_onnx != (reference == "onnx-file") and reference != "own-graph":
        kind = "came as an ONNX file" if from_onnx else "did not come as an ONNX file"
        raise InputError(f"reference {wanted!r} is not for {spec.name}, which {kind}")
    if reference == "golden" and golden_of(spec) is None:
        raise InputError(
            f"no golden outputs ship for {spec.name} with digest {spec.digest[:16]}; "
            f"they ship for {', '.join(golden.names())} with the weights and the pooling as published"
        )
    if reference == "pytorch" and not pytorch_installed():
        raise MissingExtraError("reference 'pytorch'", "torch")
    return reference


def golden_of(spec: ModelSpec) -> golden.Golden | None:
    """The stored outputs for these weights; all that ship are normalised means and nothing else.

    What a model gives beside those, the states of its tokens, is for its own graph to be held to.
    """
    as_published = spec.task == "embeddings" and spec.pooling == "mean" and spec.normalize
    return golden.find(spec.digest) if as_published else None


def pytorch_installed() -> bool:
    """Whether PyTorch and transformers can be imported; neither is."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def gather(
    reference: Reference,
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    profile: Profile,
    promise: Promise | None = None,
) -> tuple[Evidence, ...]:
    """What candidates are judged by, the strongest reference first.

    The golden outputs are few and have no odd shapes, so the own graph's are taken with them.
    """
    samples = samples_for(spec, profile, checkpoint.root)
    if reference == "pytorch":
        return (_pytorch(checkpoint.root, spec, profile, samples, promise),)
    if reference == "onnx-file":
        return (_onnx_file(checkpoint, spec, profile, samples, promise),)
    own = _own_graph(checkpoint, spec, profile, samples, promise)
    return (_golden(spec, profile), own) if reference == "golden" else (own,)


def samples_for(spec: ModelSpec, profile: Profile, tokenizer: Path) -> tuple[Sample, ...]:
    """Seeded ids of every shape that the profile allows, and real texts where there is a tokenizer."""
    return (*draw(spec, profile), *_texts(spec, profile, tokenizer))


def judge_all(  # noqa: PLR0913 - six, which is as many as a function may have here
    evidence: Sequence[Evidence],
    candidate: Session,
    spec: ModelSpec,
    profile: Profile,
    precision: str,
    *,
    promised: bool = False,
) -> tuple[Check, ...]:
    """Every comparison there is for one candidate; that a batch equals its rows is always among them.

    `promised` says that the precision was, or is being, chosen by what it loses on the user's rows.
    """
    checks = [
        check for item in evidence for check in item.judge(candidate, spec, precision, promised=promised)
    ]
    # Of a model that nothing is known of, the samples of the reference are those that it takes.
    drawn = evidence[0].samples if spec.task == TENSORS else draw(spec, profile, seed=1)
    held = spec.comes_in if precision == "fp32" else precision
    return (*checks, *invariance(candidate, drawn, spec, profile, held))


def _asked(
    reference: Reference, session: Session, samples: Sequence[Sample], promise: Promise | None
) -> Evidence:
    return Evidence(
        reference=reference,
        samples=tuple(samples),
        outputs=tuple(session.run(sample.feeds) for sample in samples),
        promise=promise,
        promised=() if promise is None else promise.questions.ask(session),
    )


def _asked_for_arrays(
    reference: Reference,
    session: Session,
    samples: Sequence[Sample],
    spec: ModelSpec,
    promise: Promise | None,
) -> Evidence:
    """Drawn calls, and some of the user's: beside those, drawn ones that the model cannot take are left out."""
    answers: list[tuple[Sample, Feeds]] = []
    if promise is not None:
        asked = promise.questions
        real = [asked.sample(at) for at in asked.some(SOME_ROWS)]
        answers = [(sample, session.run(sample.feeds)) for sample in real]
    for sample in samples:
        outputs, why = _tried(session, sample)
        if not why:
            answers.append((sample, outputs))
        elif promise is None:
            raise InputError(_not_taken(sample, why, spec))
    return Evidence(
        reference=reference,
        samples=tuple(sample for sample, _ in answers),
        outputs=tuple(outputs for _, outputs in answers),
        promise=promise,
        promised=() if promise is None else promise.questions.ask(session),
    )


def _tried(session: Session, sample: Sample) -> tuple[Feeds, str]:
    """What a session gives, and what is wrong with it."""
    try:
        outputs = session.run(sample.feeds)
    except RunError as error:
        return {}, f"it fails: {error}"
    for name, array in outputs.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            return {}, f"it gives NaN for {name!r}"
    return outputs, ""


def _not_taken(sample: Sample, why: str, spec: ModelSpec) -> str:
    sizes = ", ".join(f"{axis} {size}" for axis, size in sample.sizes(spec).items())
    stated = " ".join(f"--inputs '{tensor}'" for tensor in spec.parts[0].inputs)
    return (
        f"{spec.name} itself does not take what was drawn for it ({sample.name}{sizes and ': ' + sizes}): {why}; "
        "give real calls with --data FOLDER, or state what it takes: axes that go together by one name, values by "
        f"their range, :LOW:HIGH; now it is {stated}"
    )


def _pytorch(
    root: Path, spec: ModelSpec, profile: Profile, samples: Sequence[Sample], promise: Promise | None
) -> Evidence:
    from alula.engines import torch as torch_engine  # noqa: PLC0415 - seconds to import, and often absent

    with closing(torch_engine.reference(root, spec, profile=profile)) as session:
        return _asked("pytorch", session, samples, promise)


def _own_graph(
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    profile: Profile,
    samples: Sequence[Sample],
    promise: Promise | None,
) -> Evidence:
    """The graph as it was written, in fp32 and with no pass applied, in ONNX Runtime."""
    from alula.running import running  # noqa: PLC0415 - onnx_ir takes most of a second to import

    with running(families.write(checkpoint, spec, "encoder"), profile) as session:
        if spec.task == TENSORS:
            return _asked_for_arrays("own-graph", session, samples, spec, promise)
        return _asked("own-graph", session, samples, promise)


def _onnx_file(
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    profile: Profile,
    samples: Sequence[Sample],
    promise: Promise | None,
) -> Evidence:
    """The file as it came, in ONNX Runtime."""
    from alula.running import running_file  # noqa: PLC0415 - not for a build that comes from the cache

    original = families.original(checkpoint, spec)
    with running_file(original.path, spec.part("encoder"), profile, original.outputs) as session:
        if spec.task == TENSORS:
            return _asked_for_arrays("onnx-file", session, samples, spec, promise)
        return _asked("onnx-file", session, samples, promise)


def _golden(spec: ModelSpec, profile: Profile) -> Evidence:
    """The stored outputs of transformers for these very weights, packed to batches that the profile takes."""
    stored = golden_of(spec)
    if stored is None:
        raise InputError(f"no golden outputs ship for {spec.name}")
    pairs = list(zip(stored.samples, stored.outputs, strict=True))
    within = [(sample, outputs) for sample, outputs in pairs if profile.takes(sample.sizes(spec))]
    within = within or list(_repacked(pairs, spec, profile))
    return Evidence(
        reference="golden",
        samples=tuple(sample for sample, _ in within),
        outputs=tuple(outputs for _, outputs in within),
    )


def _repacked(
    pairs: Sequence[tuple[Sample, Feeds]], spec: ModelSpec, profile: Profile
) -> Iterator[tuple[Sample, Feeds]]:
    """Rows that fit the profile's length, each as one batch of its smallest size: the row, repeated."""
    for sample, outputs in pairs:
        for row, size in enumerate(sample.mask.sum(axis=1)):
            if size > profile.axes["length"].max:
                continue
            one = alone(sample, row, spec, profile)
            rows = len(one.mask)
            yield (
                one,
                {name: np.repeat(array[row : row + 1], rows, axis=0) for name, array in outputs.items()},
            )


def _texts(spec: ModelSpec, profile: Profile, tokenizer: Path) -> Iterator[Sample]:
    if not (tokenizer / "tokenizer.json").is_file():
        return
    from alula.codecs import TextCodec, collate  # noqa: PLC0415 - not for a build that comes from the cache

    codec = TextCodec.open(tokenizer, spec)
    rows = [codec.encode_pair(*t) if len(t) == 2 else codec.encode(t[0]) for t in texts_for(spec.task)]
    longest = profile.axes["length"].max
    rows = sorted((row for row in rows if len(row.ids) <= longest), key=lambda row: len(row.ids))
    step = min(TEXT_BATCH, profile.most("batch", {"length": max((len(row.ids) for row in rows), default=0)}))
    for start in range(0, len(rows) - step + 1, step):
        batch = rows[start : start + step]
        sizes = profile.padded({"batch": step, "length": len(batch[-1].ids)})
        filled = [*batch, *batch[-1:] * (sizes["batch"] - step)]
        name = f"texts {start}-{start + step - 1}"
        yield Sample(name=name, feeds=collate(filled, spec, sizes["length"]))
