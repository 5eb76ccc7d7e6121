"""Down the precisions of a target: every one that it offers, then the mixed one that is found by search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from alula.bench import Measured
from alula.bundles import Rung
from alula.core.errors import InputError
from alula.core.progress import Progress
from alula.evidence import Evidence
from alula.mixed import bargains
from alula.rungs import Candidate, Workshop, choose_rung, fastest, gains, speeds_of

MIXED = "int8-mixed"

ATTEMPTS = 4
"""Mixed engines that are compiled at most: the target may round a little differently from the graph of the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """Every candidate that was finished, their speeds, and the rungs that were not tried or did not last, and why."""

    candidates: tuple[Candidate, ...]
    measured: Measured
    others: tuple[Rung, ...]
    interrupted: bool

    def choose(self) -> tuple[Candidate, tuple[Rung, ...]]:
        """The candidate to take, and all rungs."""
        taken, rungs = choose_rung(self.candidates, self.measured)
        return taken, (*rungs, *self.others)


@dataclass(kw_only=True, slots=True)
class Ladder:
    """One climb. What is finished is kept when it is interrupted."""

    workshop: Workshop
    progress: Progress
    candidates: list[Candidate] = field(default_factory=list)
    others: list[Rung] = field(default_factory=list)
    measured: Measured | None = None

    def climb(self, precisions: Sequence[str]) -> Climbed:
        """Try these precisions, highest first; the mixed one last, and beside others only where it can win."""
        interrupted = False
        waiting = list(precisions)
        try:
            for precision in precisions:
                if precision != MIXED:
                    self.candidates.append(self.workshop.candidate(precision, self.progress))
                    waiting.remove(precision)
            if MIXED in precisions:
                self._mix()
                waiting.remove(MIXED)
        except KeyboardInterrupt:
            if not self.candidates:
                raise
            interrupted = True
            self.others += [
                _untried(precision, "interrupted before it was finished") for precision in waiting
            ]
        if not self.candidates:
            raise InputError(f"nothing to keep of {', '.join(precisions)}: {self.others[-1].reason}")
        return Climbed(
            candidates=tuple(self.candidates),
            measured=self._measured(),
            others=tuple(self.others),
            interrupted=interrupted,
        )

    def _mix(self) -> None:
        """Find which layers to keep out of int8, unless that cannot win."""
        if self.candidates and (reason := _spared(self.candidates, self._measured())):
            self.others.append(_untried(MIXED, reason))
            return
        proved = next(item for item in self.workshop.evidence if item.promise is not None)
        with self.progress.phase("search the layers to keep out of int8"):
            layers, count = self._bargains(proved)
        for attempt in range(ATTEMPTS):
            if count >= len(layers):
                break
            kept = frozenset(layers[:count])
            candidate = self.workshop.candidate(MIXED, self.progress, kept)
            if candidate.passed or attempt == ATTEMPTS - 1:
                self.candidates.append(candidate)
                return
            self.workshop.discard(candidate)
            count += max(1, len(layers) // 12)
        self.others.append(_untried(MIXED, f"all {len(layers)} layers would have to be kept out of int8"))

    def _bargains(self, proved: Evidence) -> tuple[tuple[str, ...], int]:
        shop = self.workshop
        assert proved.promise is not None
        assert shop.calibration is not None
        return bargains(
            shop.checkpoint, shop.spec, shop.calibration, proved.promise, proved.promised, proved.reference
        )

    def _measured(self) -> Measured:
        """The speeds of the candidates so far; measured again, all together, when one was added."""
        if self.measured is None or len(self.measured.rows) != len(self.candidates):
            names = ", ".join(c.precision for c in self.candidates)
            with self.progress.phase(f"measure {names}"):
                self.measured = self.workshop.measure(self.candidates)
        return self.measured


def _spared(candidates: Sequence[Candidate], measured: Measured) -> str:
    """Why the mixed rung need not be searched; empty if it must. Pure."""
    speeds = speeds_of(candidates, measured)
    by_name = {c.precision: c for c in candidates}
    int8 = by_name.get("int8")
    best = fastest([c for c in candidates if c is not int8], speeds)
    if int8 is None:
        return ""
    if int8.passed:
        return "not searched: int8 is within the limits"
    if best is None:
        return "not searched: not even the highest precision is within the limits"
    if not gains(int8, best, speeds):
        return f"not searched: int8 itself is not surely faster than {best.precision}"
    return ""


def _untried(precision: str, reason: str) -> Rung:
    return Rung(precision=precision, passed=False, p50_ms=None, shape="", taken=False, reason=reason)
