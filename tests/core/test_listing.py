"""Names in one line of a message."""

from __future__ import annotations

from time import perf_counter

import pytest

from alula.core.errors import InputError
from alula.core.listing import twice
from alula.serve import bodies


def test_the_first_name_that_is_there_twice() -> None:
    assert twice(["a", "b", "c", "b", "a"]) == "a"
    assert twice(["", "b", ""]) == ""


def test_a_name_twice_among_many_holds_nobody_up() -> None:
    """Each name looked for among all: 20,000 of them took 4 s, in which a server answers nobody."""
    fields = ",".join(f'"k{at}":1' for at in range(100_000))
    body = f'{{{fields},"k99999":2}}'.encode()
    begun = perf_counter()
    with pytest.raises(InputError, match="the body has 'k99999' twice"):
        bodies.parse(body)
    assert perf_counter() - begun < 5
