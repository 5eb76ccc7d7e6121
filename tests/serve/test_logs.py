"""What a server logs where its log is not read."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import sys
from collections.abc import Iterator
from time import monotonic

import pytest

from alula.serve.logs import Unwaited, unwaited

pytestmark = pytest.mark.timeout(60)
PAGE = 4096
LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of one that holds a page."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], 1031, PAGE)  # F_SETPIPE_SZ, which Python 3.10 does not name everywhere
    yield ends
    # Whoever still writes comes to an end before these numbers are another file's.
    drained(ends[0])
    for each in ends:
        os.close(each)


def drained(descriptor: int) -> str:
    """All that is written, until nothing is for a while."""
    found = b""
    while select.select([descriptor], [], [], 0.3)[0]:
        found += os.read(descriptor, PAGE)
    return found.decode()


def test_lines_that_nobody_reads_are_not_waited_for_and_are_counted(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    full = PAGE // len(LINE)
    os.write(pipe[1], LINE.encode() * full)
    log = Unwaited(pipe[1], most=10)
    begun = monotonic()
    for _ in range(500):
        log.write(LINE)
    assert monotonic() - begun < 1.0
    lines = drained(pipe[0]).splitlines()
    assert set(lines) == {LINE.strip()}
    dropped = sum(int(each.getMessage().split()[0]) for each in caplog.records)
    assert len(lines) + dropped == full + 500
    assert dropped >= 400
    log.end()


def test_what_waits_is_written_when_the_log_ends(pipe: tuple[int, int]) -> None:
    log = Unwaited(pipe[1])
    for at in range(20):
        print(at, file=log)
    log.end()
    assert drained(pipe[0]).split() == [str(at) for at in range(20)]


def test_an_end_is_not_waited_for_where_nobody_reads(pipe: tuple[int, int]) -> None:
    log = Unwaited(pipe[1])
    print(LINE * 100, file=log)
    begun = monotonic()
    log.end(wait_s=0.2)
    assert monotonic() - begun < 5.0


def test_all_of_a_process_that_logs_goes_by_way_of_it(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with os.fdopen(os.dup(pipe[1]), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        handler = logging.StreamHandler(stderr)
        logging.getLogger().addHandler(handler)
        try:
            with unwaited():
                assert isinstance(handler.stream, Unwaited)
                sys.stderr.write('{"said": 1}\n')
                logging.getLogger("alula").warning("said as well")
            assert sys.stderr is handler.stream is stderr
        finally:
            logging.getLogger().removeHandler(handler)
    assert drained(pipe[0]).splitlines() == ['{"said": 1}', "said as well"]
