"""Down the precisions of a target: every one that it offers, then the mixed one that is found by search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from alula.bench import Measured
from alula.bundles import Rung
from alula.core.errors import DeviceLostError, EngineError, InputError
from alula.core.progress import Progress
from alula.mixed import Search, rebuilt, switched
from alula.rungs import Candidate, Workshop, choose_rung, fastest, gains, rung_of, speeds_of

ATTEMPTS = 4
"""Mixed engines that are compiled at most: the target may round a little differently from the graph of the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """Every candidate that was finished, their speeds, and the rungs that were not tried or did not last, and why.

    `not_run` says why the only candidate was compiled and no more.
    """

    candidates: tuple[Candidate, ...]
    measured: Measured
    others: tuple[Rung, ...] = ()
    interrupted: bool = False
    not_run: str = ""

    def choose(self) -> tuple[Candidate, tuple[Rung, ...]]:
        """The candidate to take, and all rungs."""
        if self.not_run:
            (only,) = self.candidates
            return only, (
                replace(rung_of(only), taken=True, reason=f"compiled here, not run ({self.not_run})"),
            )
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

    def climb(self, precisions: Sequence[str], left: Mapping[str, str] = MappingProxyType({})) -> Climbed:
        """Try these precisions, highest first; mixed ones last, and beside others only where they can win.

        Those that are `left` are listed as not tried, each with its reason.
        """
        interrupted = False
        self.others += [_untried(precision, reason) for precision, reason in left.items()]
        waiting = list(precisions)
        try:
            for precision in sorted(precisions, key=_is_mixed):
                if _is_mixed(precision):
                    self._mix(precision)
                else:
                    self._try(precision)
                waiting.remove(precision)
            if self.candidates:
                self._measured()
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

    def _try(self, precision: str) -> None:
        """One precision; where another one is finished, that this cannot be compiled or run is no reason to end."""
        try:
            self.candidates.append(self.workshop.candidate(precision, self.progress))
        except EngineError as error:
            # On a lost device the finished ones do not run either.
            if not self.candidates or isinstance(error, DeviceLostError):
                raise
            self.others.append(_untried(precision, f"failed: {error}"))

    def _mix(self, precision: str) -> None:
        """Find which layers to keep in a higher precision, unless that cannot win."""
        if self.candidates and (reason := _spared(precision, self.candidates, self._measured())):
            self.others.append(_untried(precision, reason))
            return
        low = _plain(precision)
        with self.progress.phase(f"search the layers to keep out of {low}"):
            layers, count = self._bargains(low)
        # What the search cannot see, the package's own samples above all, made the plain one fail where this is nought.
        count, step = max(count, 1 if self.candidates else 0), max(1, len(layers) // 12)
        for attempt in range(ATTEMPTS):
            if count >= len(layers):
                break
            candidate = self.workshop.candidate(precision, self.progress, frozenset(layers[:count]))
            if candidate.passed or attempt == ATTEMPTS - 1:
                self.candidates.append(candidate)
                return
            self.workshop.discard(candidate)
            count += step
            step *= 2
        self.others.append(
            _untried(precision, f"all {len(layers)} layers would have to be kept out of {low}")
        )

    def _bargains(self, low: str) -> tuple[tuple[str, ...], int]:
        shop = self.workshop
        proved = next(item for item in shop.evidence if item.promise is not None)
        assert proved.promise is not None
        asked = shop.checkpoint, shop.spec
        if low == "fp16":
            opened = rebuilt(*asked, shop.fitted.beyond, proved.promise)
        else:
            assert shop.calibration is not None
            opened = switched(*asked, shop.calibration, proved.promise, shop.backend.name)
        with opened as (lowered, costs):
            search = Search(
                promise=proved.promise,
                expected=proved.promised,
                reference=proved.reference,
                lowered=lowered,
            )
            return search.bargains(costs)

    def _measured(self) -> Measured:
        """The speeds of the candidates so far; measured again, all together, when one was added."""
        if self.measured is None or len(self.measured.rows) != len(self.candidates):
            names = ", ".join(c.precision for c in self.candidates)
            with self.progress.phase(f"measure {names}"):
                self.measured = self.workshop.measure(self.candidates)
        return self.measured


def compiled_only(workshop: Workshop, precision: str, why: str, progress: Progress) -> Climbed:
    """One precision for a target that cannot run here: no evidence, no speed."""
    candidate = workshop.compiled(precision, progress)
    return Climbed(candidates=(candidate,), measured=Measured(rows=(), ratios=()), not_run=why)


def _is_mixed(precision: str) -> bool:
    return precision.endswith("-mixed")


def _plain(precision: str) -> str:
    """The precision that a mixed one keeps layers out of."""
    return precision.removesuffix("-mixed")


def _spared(precision: str, candidates: Sequence[Candidate], measured: Measured) -> str:
    """Why a mixed rung need not be searched; empty if it must. Pure."""
    speeds = speeds_of(candidates, measured)
    low = next((c for c in candidates if c.precision == _plain(precision)), None)
    if low is None:
        return ""
    best = fastest([c for c in candidates if c is not low], speeds)
    if low.passed:
        return f"not searched: {low.precision} is within the limits"
    if best is None:
        return "not searched: not even the highest precision is within the limits"
    if not gains(low, best, speeds):
        return f"not searched: {low.precision} itself is not surely faster than {best.precision}"
    return ""


def _untried(precision: str, reason: str) -> Rung:
    return Rung(precision=precision, passed=False, p50_ms=None, shape="", taken=False, reason=reason)
