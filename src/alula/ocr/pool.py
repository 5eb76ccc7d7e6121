"""Pages taken from files by several processes, ahead of whoever reads them, in their order and never too many."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TypeAlias

from alula.core.errors import RunError
from alula.documents import Scan
from alula.ocr.loading import Lost, Selection, Taking
from alula.ocr.worker import Answer, Task, receive

Taken: TypeAlias = Scan | Lost

AHEAD = 2
"""Pages for each process that may be waiting or under work."""

TRIES = 1
"""How often a page is tried again whose process ended."""

_LEAVE_S = 2.0
_START_S = 60.0
"""For a process to start, beside what its page may take."""


def taken(
    sources: Iterable[str], selection: Selection, taking: Taking, *, jobs: int = 1, ahead: int = 0
) -> Generator[Taken]:
    """Every selected page of every file, in order, `ahead` of them at most taken before they are asked for.

    A file that cannot be opened is one `Lost` without an index, a page that cannot be taken one with it; neither ends
    the others. Closing the iterator ends its processes.
    """
    with closing(Pool(taking, jobs)) as pool:
        waiting: deque[Ticket] = deque()
        tickets = _tickets(pool, sources, selection)
        for ticket in tickets:
            waiting.append(ticket)
            if len(waiting) >= (ahead or AHEAD * jobs):
                yield _page(pool.result(waiting.popleft()))
        while waiting:
            yield _page(pool.result(waiting.popleft()))


def _tickets(pool: Pool, sources: Iterable[str], selection: Selection) -> Iterator[Ticket]:
    """Work for the pool, given out as it is asked for."""
    for source in sources:
        ticket = pool.submit(Task(source=source))
        count = pool.result(ticket)
        if not isinstance(count, int):
            yield ticket
            continue
        places = selection.of(count)
        has = f"{count} {'page' if count == 1 else 'pages'}"
        if not places:
            yield _missing(Task(source=source), f"has {has}, and none of those that were asked for")
            continue
        for index in places:
            yield pool.submit(Task(source=source, index=index))
        for index in selection.beyond(count):
            why = f"was asked for and is not there: the file has {has}"
            yield _missing(Task(source=source, index=index), why)


def _missing(task: Task, why: str) -> Ticket:
    return Ticket(task=task, answer=_lost(task, why))


def _lost(task: Task, why: str) -> Lost:
    """What is said of a file or its page, behind its name and number."""
    page = "" if task.index is None else f", page {task.index + 1}"
    return Lost(source=task.source, index=task.index, message=f"{task.source}{page} {why}")


def _page(answer: Answer) -> Taken:
    assert not isinstance(answer, int)
    return answer


@dataclass(slots=True, eq=False)
class Ticket:
    """Work that was given to the pool, what came of it, and how many processes ended over it."""

    task: Task
    answer: Answer | None = None
    ended: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, our end of the socket to it, and what it works on until when."""

    process: subprocess.Popen[bytes]
    connection: Connection
    ticket: Ticket | None = None
    until: float = 0.0
    answered: bool = False

    def end(self, wait_s: float) -> None:
        """Close the socket, on which the process leaves; kill it if it does not."""
        self.connection.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """At most `jobs` processes that open files, begun as work waits. Not thread-safe: one owner, who closes it."""

    def __init__(self, taking: Taking, jobs: int = 1) -> None:
        self._taking, self._jobs = taking, max(1, jobs)
        self._workers: list[_Worker] = []
        self._waiting: deque[Ticket] = deque()

    @property
    def processes(self) -> list[int]:
        """Their ids."""
        return [worker.process.pid for worker in self._workers]

    def submit(self, task: Task) -> Ticket:
        """Give work to the first process that is free, or to another one; nothing is waited for."""
        ticket = Ticket(task=task)
        self._waiting.append(ticket)
        self._assign()
        return ticket

    def result(self, ticket: Ticket) -> Answer:
        """What came of a ticket, waited for; answers to others are kept on theirs meanwhile."""
        while ticket.answer is None:
            busy = [worker for worker in self._workers if worker.ticket is not None]
            rest = min(worker.until for worker in busy) - time.monotonic()
            ready = wait([worker.connection for worker in busy], max(0.0, rest))
            now = time.monotonic()
            for worker in busy:
                if worker.connection in ready:
                    self._receive(worker)
                elif now >= worker.until:
                    self._give_up(worker, f"takes more than {self._taking.page_s:g} s")
            self._assign()
        return ticket.answer

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        for worker in self._workers:
            # What is under work is no longer wanted.
            worker.end(0.0 if worker.ticket is not None else _LEAVE_S)
        self._workers.clear()

    def _assign(self) -> None:
        while self._waiting and (worker := self._free()) is not None:
            worker.ticket = self._waiting.popleft()
            starting = 0.0 if worker.answered else _START_S
            worker.until = time.monotonic() + self._taking.page_s + starting
            try:
                worker.connection.send(worker.ticket.task)
            except OSError:  # it has ended between two tasks
                self._try_again(worker, "cannot be opened: the process for it has ended")

    def _free(self) -> _Worker | None:
        """A process with no work, begun where there may be one more."""
        for worker in self._workers:
            if worker.ticket is None:
                return worker
        if len(self._workers) == self._jobs:
            return None
        self._workers.append(_started(self._taking))
        return self._workers[-1]

    def _receive(self, worker: _Worker) -> None:
        assert worker.ticket is not None
        try:
            worker.ticket.answer = receive(worker.connection)
            worker.ticket, worker.answered = None, True
        except (EOFError, OSError):
            worker.process.wait()
            if not worker.answered and worker.process.returncode > 0:
                raise RunError(
                    f"a process to open files does not start: it ends with {worker.process.returncode}"
                ) from None
            self._try_again(worker, "cannot be opened: it crashes what opens it")

    def _try_again(self, worker: _Worker, why: str) -> None:
        """Give a task whose process ended to another, once: somebody may have killed it for its memory."""
        ticket = worker.ticket
        assert ticket is not None
        ticket.ended += 1
        if ticket.ended > TRIES:
            self._give_up(worker, why)
            return
        self._waiting.appendleft(ticket)
        self._renew(worker)

    def _give_up(self, worker: _Worker, why: str) -> None:
        """Answer for a process that is lost, and start another in its place."""
        assert worker.ticket is not None
        worker.ticket.answer = _lost(worker.ticket.task, why)
        self._renew(worker)

    def _renew(self, worker: _Worker) -> None:
        worker.end(0.0)
        self._workers[self._workers.index(worker)] = _started(self._taking)


def _started(taking: Taking) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "alula.ocr.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
    connection = Connection(ours.detach())
    connection.send(taking)
    return _Worker(process=process, connection=connection)
