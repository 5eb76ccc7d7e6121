"""Evidence: one comparison of an engine with a reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from alula.core.errors import InputError

Reference = Literal["pytorch", "onnx-file", "golden", "own-graph"]
"""What an engine was compared with: `onnx-file` is the model's own file as it came, in ONNX Runtime; `golden` are
stored outputs of transformers."""


REFERENCES: tuple[Reference, ...] = get_args(Reference)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One comparison of an engine with its reference, kept whether it passed or not.

    `note` says what the numbers cannot; `rows` is the beginning of the digest of the user's rows it was made on, empty
    where it was made on samples of the package's.
    """

    output: str
    metric: str
    samples: int
    worst: float
    mean: float
    limit: float
    higher_is_better: bool
    reference: Reference
    note: str = ""
    rows: str = ""

    @property
    def passed(self) -> bool:
        """No evidence is not a pass, and neither is NaN."""
        within = self.worst >= self.limit if self.higher_is_better else self.worst <= self.limit
        return self.samples > 0 and within


def verified(checks: Iterable[Check]) -> bool:
    """Whether every check passed and one of them at least compared with something that is not our own graph."""
    kept = list(checks)
    return all(check.passed for check in kept) and any(check.reference != "own-graph" for check in kept)


def reference_named(name: str) -> Reference:
    """The reference of that name, or an error that lists them."""
    for reference in REFERENCES:
        if name == reference:
            return reference
    raise InputError(f"reference {name!r} is not one of: {', '.join(REFERENCES)}")
