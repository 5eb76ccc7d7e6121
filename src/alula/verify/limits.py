"""How far an engine may be from its reference: constants chosen before any run, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.words import BY_VALUE, TENSORS, TOKENS

HIGHER_IS_BETTER = frozenset(
    {
        "cosine",
        "label_agreement",
        "token_label_agreement",
        "step_label_agreement",
        "value_agreement",
        "decision_agreement",
        "order_agreement",
        "span_agreement",
        "next_token_agreement",
    }
)
"""Metrics that count sameness; all others count distance."""


EQUAL = 0.999
"""Of the whole numbers that an output has. They are counted from others, such as the best class of each pixel, and
which of two is larger that are equal to the last digit falls either way."""

LEAST_SCALE = 0.01
"""Of outputs in a known range, the share of it that differences are measured against at least.

A sigmoid is rounded near 1 and so off by 2^-23 however small it comes out: 1e-7, a tenth of what fp32 may be at 0.01.
"""

LEAST_LEVEL = 0.001
"""The same for differences on the whole: 3e-8 of them is a third of what fp32 may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one precision may cost.

    `cosine` is the least of any row, `max_abs` the largest difference of a component of a unit vector, `max_error`
    the largest difference as a share of the output's scale (its largest magnitude over all samples; of a recogniser's
    steps, their mean), `agreement`
    the least share of equal decisions. `tie` is the share of the scale below which the reference's own preference
    for one choice over another is no decision: flipping it is counted as agreement.
    """

    cosine: float
    max_abs: float
    max_error: float
    agreement: float
    tie: float
    reason: str

    def of(self, metric: str) -> float:
        """The limit of a metric by its name."""
        if metric == "cosine":
            return self.cosine
        if metric == "max_abs":
            return self.max_abs
        if metric == "value_agreement":
            return min(self.agreement, EQUAL)
        return self.agreement if metric.endswith("_agreement") else self.max_error


LIMITS: Mapping[str, Limits] = {
    "fp32": Limits(
        cosine=0.9999,
        max_abs=1e-4,
        max_error=1e-4,
        agreement=1.0,
        tie=2e-4,
        reason=(
            "another order of summation costs about 1e-6 over twelve layers; 1e-4 leaves room for longer "
            "sums and faster exponentials, and is a twentieth of bf16's rounding, so hidden bf16 fails. "
            "two logits that may each move by 1e-4 can swap when they are 2e-4 apart, no other can"
        ),
    ),
    "bf16": Limits(
        cosine=0.999,
        max_abs=2e-2,
        max_error=5e-2,
        agreement=0.99,
        tie=2e-2,
        reason=(
            "one rounding is 2^-9 = 0.2 % and some hundred of them add up like a random walk to about 2 %; "
            "norms and sums stay in fp32, and an engine that rounds those too loses 2e-2 of a unit vector's "
            "component, which is to fail. cosine 0.999 is 4.5 % of a vector's length, and so is the worst "
            "element of many. a choice between two answers closer than 2 % is the precision's to make; "
            "of the clear ones, one in a hundred may fall to the worst element"
        ),
    ),
    "fp16": Limits(
        cosine=0.9998,
        max_abs=5e-3,
        max_error=1.25e-2,
        agreement=0.995,
        tie=5e-3,
        reason=(
            "one rounding is 2^-11, a quarter of bf16's, and so are the limits of distance; cosine falls with the "
            "square of the distance, 0.9998 being 2 % of a vector's length"
        ),
    ),
    "int8": Limits(
        cosine=0.95,
        max_abs=0.1,
        max_error=0.25,
        agreement=0.95,
        tie=5e-2,
        reason=(
            "what int8 may cost is for the budget to say, on the user's own data; on texts that it was not calibrated "
            "with, these limits only tell eight bits from a fault: a wrong scale, swapped outputs, a missing layer"
        ),
    ),
}

LIKE: Mapping[str, str] = {
    "fp16-mixed": "fp16",
    "int8-mixed": "int8",
    "fp8": "int8",
    "int8-weights": "int8",
    "int4-weights": "int8",
}
"""Precisions that are held to the limits of another one."""

CALIBRATED = frozenset({"int8", "int8-mixed", "fp8", "int8-weights", "int4-weights"})
"""Precisions that a budget judges; random token ids, for which no range was measured, say nothing about them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextTokens:
    """What a precision may cost a model that writes text, where nobody gave a budget on rows of their own.

    `max_error` is the largest difference of a logit as a share of the largest logit, None where only what is said of
    the next token counts: of 50,000 logits a token the worst lies five deviations out, and is mostly one that nobody
    takes. `near` is how much less than its best token, in logits, the reference may give another for
    either to be taken; `agreement` the least share of next tokens that are the reference's own, and `divergence` the
    mean of Kullback and Leibler's from it, in nats a token.
    """

    max_error: float | None
    near: float
    agreement: float
    divergence: float
    reason: str


NEXT_TOKENS: Mapping[str, NextTokens] = {
    "fp32": NextTokens(
        max_error=1e-4,
        near=1e-3,
        agreement=1.0,
        divergence=1e-5,
        reason=(
            "as for every model 1e-4 of the scale; logits are some ten to thirty, of which that is 1e-3 and more, so "
            "that tokens nearer than 1e-3 are the summation's to choose and no others are. errors of 3e-3 in all "
            "logits diverge by half of their square, 4.5e-6"
        ),
    ),
    "bf16": NextTokens(
        max_error=None,
        near=0.25,
        agreement=0.99,
        divergence=1e-2,
        reason=(
            "2 % of logits that spread over some nats is 0.06 to 0.1 nats, whose half square is 2e-3 to 5e-3; a "
            "choice between two tokens of which one is less than 1.3 times as likely is the precision's to make, and "
            "of the clear ones one in a hundred may fall to the worst errors. eight bits by block in another engine "
            "diverge by 1.4e-3 on a model of eight billion, three bits by 0.1"
        ),
    ),
    "fp16": NextTokens(
        max_error=None,
        near=0.0625,
        agreement=0.995,
        divergence=1e-3,
        reason=(
            "one rounding is 2^-11, a quarter of bf16's, and so is a choice that is the precision's; divergence "
            "falls with the square of that, to a sixteenth, with some room for sums that engines keep in fp16"
        ),
    ),
    "int8-weights": NextTokens(
        max_error=None,
        near=0.25,
        agreement=0.99,
        divergence=1e-2,
        reason="a weight of eight bits by block is rounded as far as one of bf16 is, and is held to the same",
    ),
    "int4-weights": NextTokens(
        max_error=None,
        near=1.0,
        agreement=0.95,
        divergence=0.1,
        reason=(
            "what is known of sound four-bit forms is 0.03 to 0.07 nats a token on eight billion weights, and that of "
            "three bits 0.1; small models have less to spare. one token in twenty may be another than the clear best "
            "one. who cannot have that gives rows and a budget with --data, or names another precision"
        ),
    ),
}


FAULTY = "int4-weights"
"""Whose limits tell a precision from a fault where a budget on the user's rows says what it may cost."""


def next_tokens_for(precision: str) -> NextTokens:
    """The limits of a precision for models that write text, by its name."""
    if precision not in NEXT_TOKENS:
        raise InputError(
            f"no limits on next tokens for precision {precision!r}; there are {sorted(NEXT_TOKENS)}"
        )
    return NEXT_TOKENS[precision]


def limits_for(precision: str) -> Limits:
    """The limits of a precision, by its name."""
    name = LIKE.get(precision, precision)
    if name not in LIMITS:
        raise InputError(f"no limits for precision {precision!r}; there are {sorted([*LIMITS, *LIKE])}")
    return LIMITS[name]


def held_to(precision: str, *, promised: bool, comes_in: str = "fp32") -> str:
    """Whose limits a precision is held to on the package's own samples.

    Where a budget on the user's rows says what it may cost, they only tell it from a fault; fp32 is to be the model.
    A file that comes in a lower precision is held to that: another engine rounds its numbers at other places.
    """
    if precision == "fp32":
        return comes_in
    return "int8" if promised else precision


def limits_of_invariance(precision: str) -> Limits:
    """What a row may change by its neighbours and padding; that costs eight bits no more than sixteen.

    The same values are rounded the same way; sums in another order move a few of them by one step of 255, as one
    rounding of bf16 does.
    """
    return limits_for("bf16" if precision in CALIBRATED else precision)


# Between two characters a recogniser may hold both for equally likely, and one step there moves by far more than any
# other. PP-OCRv4, 96 drawn lines against its file in ONNX Runtime, largest difference of a step, and of a line's mean
# over its steps: written graph there 7e-6 and 2e-7; openvino fp32 7e-4 and 2e-5; openvino bf16 2e-2 and 5e-4. The mean
# tells fp32 from what is not, the largest does not.
# Of a map the worst pixel says little at half precision: a probability that crosses from 0 to 1 at an edge moves by
# what one row of a classifier never does. PP-OCRv4 detector, 14 photographs at 640 x 640, fp16 against fp32: the worst
# pixel of a photograph is off by 0.16 to 0.57, and the map on the whole by 0.8 % to 12 %, its root mean square; bf16
# by 1.0, and by 10 % to 80 %. fp32 in two engines: 2e-5.
# A detector's edges are steeper still: PP-OCRv6 on 14 calls with pages of digits, its file in ONNX Runtime against
# openvino: fp32 3e-5 on the whole and 3e-4 at the worst pixel, bf16 3e-2 on the whole, which tells the two apart.
def metrics_of(spec: ModelSpec, precision: str = "fp32") -> tuple[tuple[str, str], ...]:
    """What is looked at for a model; of maps of pixels, and where only the tensors are known, every output.

    Those are judged on the whole, and in fp32 by the worst value as well, but for a detector's maps.
    """
    if spec.task in BY_VALUE:
        one_by_one = precision == "fp32" and spec.task == TENSORS
        floats = ("rms_error", "max_error") if one_by_one else ("rms_error",)
        return tuple(
            (output.name, metric)
            for output in spec.parts[0].outputs
            for metric in (floats if output.dtype.startswith("float") else ("value_agreement",))
        )
    usual = metrics_for(
        spec.task, labels=len(spec.labels), activation=spec.activation, normalize=spec.normalize
    )
    tokens = any(output.name == TOKENS for output in spec.parts[0].outputs)
    return (*usual, *(((TOKENS, "cosine"), (TOKENS, "max_error")) if tokens else ()))


def metrics_for(
    task: str, *, labels: int = 0, activation: str = "none", normalize: bool = False
) -> tuple[tuple[str, str], ...]:
    """What is looked at for a task: pairs of output and metric, the numeric one first."""
    if task in {"embeddings", "image-embeddings"}:
        return ("embedding", "cosine"), ("embedding", "max_abs" if normalize else "max_error")
    if task == "question-answering":
        return ("start_logits", "max_error"), ("end_logits", "max_error"), ("span", "span_agreement")
    if task == "token-classification":
        return ("logits", "max_error"), ("logits", "token_label_agreement")
    if task == "text-recognition":
        return ("probabilities", "step_error"), ("probabilities", "step_label_agreement")
    classifies = task in {"sequence-classification", "image-classification"}
    if task == "reranking" or (classifies and labels == 1):
        return ("logits", "max_error"), ("logits", "order_agreement")
    if classifies:
        agreement = "decision_agreement" if activation == "sigmoid" else "label_agreement"
        return ("logits", "max_error"), ("logits", agreement)
    raise InputError(f"no metrics for task {task!r}")
