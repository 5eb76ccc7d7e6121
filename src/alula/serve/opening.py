"""From the folder of a bundle to a session that has shown that it answers rightly on this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alula.bundles import Bundle, Stored
from alula.core.engine import OpensLanes, Session, Warming
from alula.core.errors import EngineError
from alula.core.model import Part
from alula.core.tensor import Array, Feeds
from alula.engines import backend
from alula.generate import Chosen, Generator, Request, Sampling, Stopping
from alula.local import local_engine
from alula.serve.process import Opening
from alula.serve.warming import shapes_to_warm

PART = "encoder"

# Not the proof of the bundle, which its checks are, but of this machine: a wrong kernel or a damaged engine is far
# below. bf16 is far above; eight bits and four are held to what `verify` asks of them on texts they were not made for.
ALIKE = 0.98
ALIKE_CALIBRATED = 0.95

_IDS = frozenset({"prompt", "follow", "source"})
"""What every stored script has; with images there is more."""

TOP = 20
APART = 1.5
"""In nats, of a model that writes."""


def open_bundle(root: Path, opening: Opening) -> Session | Generator:
    """The session of a bundle's encoder, or the generator of one whose model writes.

    At the first start the front proves the files whole while the engine is opened from them here, for the time
    it saves; the server is ready only once both are done. Later starts prove them here, before anything is opened.
    """
    bundle = Bundle.open(root) if opening.again else Bundle.read(root)
    if bundle.model.writes:
        return _generator(bundle, opening)
    engine = local_engine(bundle, PART)
    runtime = backend(engine.backend)
    session: Session
    if isinstance(runtime, OpensLanes):
        session = runtime.open_lanes(engine, threads=opening.threads, lanes=opening.lanes)
    else:
        session = runtime.open(engine, threads=opening.threads)
    calibrated = engine.graph.precision.startswith("int")
    least = ALIKE_CALIBRATED if calibrated else ALIKE
    prove(session, bundle.stored, bundle.model.part(PART), root, least)
    if isinstance(session, Warming):
        session.warm_up(shapes_to_warm(engine.plan.profile, padded=bundle.model.reads_text))
    return session


def _generator(bundle: Bundle, opening: Opening) -> Generator:
    from alula.generating import open_generator  # noqa: PLC0415 - loads a tokenizer, which batches do without

    generator = open_generator(
        bundle,
        threads=opening.threads,
        cache_bytes=opening.cache_bytes,
        sequences=opening.sequences,
        waiting=opening.taken,
    )
    prove_writing(generator, bundle.stored, bundle.root)
    return generator


def prove(session: Session, stored: Stored, part: Part, root: Path, least: float = ALIKE) -> None:
    """Run the smallest stored sample and compare with the stored reference; also warms the engine up."""
    if not stored.feeds:
        raise EngineError(f"{root}: no stored sample to try the engine with; build the bundle again")
    size = [sum(array.size for array in feeds.values()) for feeds in stored.feeds]
    at = size.index(min(size))
    given = session.run(stored.feeds[at])
    for output in part.outputs:
        found = real(given[output.name], stored.feeds[at], output.shape)
        expected = real(stored.outputs[at][output.name], stored.feeds[at], output.shape)
        _refuse_nan(output.name, found, expected, root)
        likeness = alike(found, expected)
        if not likeness >= least:
            raise EngineError(
                f"{root}: on this machine {output.name!r} has cosine {likeness:.4f} to the stored reference, "
                f"expected at least {least}; build the bundle again here"
            )


def prove_writing(generator: Generator, stored: Stored, root: Path) -> None:
    """Have the shortest stored prompt gone on with, and the shortest with images where there is one.

    What is compared is how sure the model is of which tokens.

    Two tokens, since the second one needs what the first has left in the cache; a bias makes the first one that of
    the reference, and log-probabilities are of logits that no bias has touched.
    """
    if not stored.feeds:
        raise EngineError(f"{root}: no stored sample to try the engine with; build the bundle again")
    sizes = [sum(array.size for array in feeds.values()) for feeds in stored.feeds]
    for kind in (False, True):
        alike = [at for at, feeds in enumerate(stored.feeds) if (set(feeds) > _IDS) == kind]
        if alike:
            _prove_prompt(generator, stored, min(alike, key=sizes.__getitem__), root)


def _prove_prompt(generator: Generator, stored: Stored, at: int, root: Path) -> None:
    prompt, follow, source = (
        tuple(map(int, stored.feeds[at][name])) for name in ("prompt", "follow", "source")
    )
    expected = np.asarray(stored.outputs[at]["logits"], np.float64)[:2]
    _refuse_nan("logits", np.zeros(0), expected, root)
    request = Request(
        prompt=prompt,
        source=source,
        seen={name: array for name, array in stored.feeds[at].items() if name not in _IDS},
        sampling=Sampling(
            temperature=0, logprobs=TOP, logit_bias=tuple((token, 100) for token in follow[:1])
        ),
        stopping=Stopping(max_tokens=len(expected)),
    )
    generator.add(0, request)
    chosen: list[Chosen] = []
    while generator.busy:
        for piece in generator.step(0.0):
            if piece.error:
                raise EngineError(f"{root}: the engine cannot go on with the stored prompt: {piece.error}")
            chosen += piece.tokens
    for row, one in zip(expected, chosen, strict=True):
        apart = _apart(row, one)
        if not apart <= APART:
            raise EngineError(
                f"{root}: on this machine log-probabilities of the {TOP} best tokens are {apart:.2f} from the stored "
                f"reference's, expected at most {APART}; build the bundle again here"
            )


def _apart(logits: NDArray[np.float64], chosen: Chosen) -> float:
    """Mean distance of the best tokens' log-probabilities from those that the logits give them."""
    peak = logits.max()
    scale = peak + np.log(np.exp(logits - peak).sum())
    tokens = [token for token, _ in chosen.top]
    given = np.array([logprob for _, logprob in chosen.top])
    return float(np.abs(given - (logits[tokens] - scale)).mean())


def _refuse_nan(name: str, found: Array, expected: Array, root: Path) -> None:
    """Refuse what no comparison tells anything about, and what to build again here would not cure."""
    if not np.isfinite(found).all():
        raise EngineError(
            f"{root}: the engine gives NaN or infinity for {name!r} on the stored sample; "
            "build the bundle at another precision: alula build MODEL --precision fp32"
        )
    if not np.isfinite(expected).all():
        raise EngineError(
            f"{root}: the stored reference has NaN or infinity for {name!r}, so that nothing shows whether the "
            "engine answers rightly; look into the model's weights"
        )


def alike(given: Array, expected: Array) -> float:
    """Cosine between two arrays; NaN for NaN, 1 for two that are nought."""
    left, right = (np.asarray(array, dtype=np.float64).ravel() for array in (given, expected))
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    if scale == 0.0:
        return float(np.array_equal(left, right))
    return float(left @ right) / scale


def real(array: Array, feeds: Feeds, shape: tuple[int | str, ...]) -> Array:
    """An output of this shape without what it says about padding."""
    if shape[:2] == ("batch", "length") and "attention_mask" in feeds:
        array = array[np.asarray(feeds["attention_mask"], dtype=bool)]
    return array
