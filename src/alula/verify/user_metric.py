"""A metric that the user wrote.

It is a function `metric(predictions, labels, texts) -> float`, all three of one length, and more is better. Its
predictions are `labelled.Prediction`s, its labels those of the data, its texts tuples of one or two.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path

from alula.core.errors import InputError

SIGNATURE = "metric(predictions, labels, texts) -> float"


@dataclass(frozen=True, kw_only=True, slots=True)
class UserMetric:
    """A function by its name, held to what a metric must give."""

    name: str
    function: Callable[..., object]

    def score(
        self, predictions: Sequence[object], labels: Sequence[object], texts: Sequence[tuple[str, ...]]
    ) -> float:
        """What the function says, or an error that says what it did instead."""
        try:
            value = self.function(list(predictions), list(labels), list(texts))
        except (Exception, SystemExit) as error:  # it is the user's code
            raise InputError(
                f"metric {self.name!r} raised {type(error).__name__}: {error}; it is called as {SIGNATURE}"
            ) from error
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(f"metric {self.name!r} gave {type(value).__name__}, expected float")
        number = float(value)
        if not math.isfinite(number):
            raise InputError(f"metric {self.name!r} gave {number}, expected a finite number")
        return number


def load_metric(name: str, folder: Path | None = None) -> UserMetric:
    """The function that `module:function` names; modules in `folder` are found too, after all others.

    The folder is looked in while the module is imported, so what it imports from there it imports at its top.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise InputError(f"metric {name!r} is not module:function, where {SIGNATURE}")
    with _found_in(folder):
        try:
            module = import_module(module_name)
        except Exception as error:  # it is the user's code
            place = "" if folder is None else f" or {folder}"
            raise InputError(
                f"metric {name!r}: module {module_name!r} cannot be imported from the installed packages{place}: "
                f"{type(error).__name__}: {error}"
            ) from error
    function = getattr(module, function_name, None)
    if function is None:
        raise InputError(f"metric {name!r}: module {module_name!r} has no {function_name!r}")
    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"metric {name!r} is {kind}, expected a function: {SIGNATURE}")
    return UserMetric(name=name, function=function)


@contextmanager
def _found_in(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    place = str(folder)
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)
