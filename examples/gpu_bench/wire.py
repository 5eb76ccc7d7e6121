"""Between the driver and a worker process: one JSON line asks, one answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_LAST_LINES = 3


class WorkerError(Exception):
    """A worker could not do what it was asked; `gone` if it can do nothing more."""

    def __init__(self, reason: str, *, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


class Worker:
    """A process with one contender in it; what it prints goes to a log."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as complaints:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=dict(env),
                text=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it can be asked anything."""
        return self._child.poll() is None

    def ask(self, limit_s: float, **message: Any) -> dict[str, Any]:
        """Ask and wait."""
        self.send(**message)
        return self.receive(limit_s)

    def send(self, **message: Any) -> None:
        """Ask; one question at a time."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise WorkerError(self._why("before it was asked"), gone=True) from error

    def receive(self, limit_s: float) -> dict[str, Any]:
        """The answer; a worker that takes longer than the limit is ended."""
        assert self._child.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._child.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            reason = f"took longer than {limit_s:g} s" if late.is_set() else self._why("while it was at it")
            raise WorkerError(reason, gone=True)
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(str(reply["error"]))
        ok: dict[str, Any] = reply["ok"]
        return ok

    def end(self) -> None:
        """Let it go; it is gone when this returns."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _why(self, when: str) -> str:
        code = self._child.wait()
        return f"ended with exit code {code} {when}: {last_lines(self._log)}"


def last_lines(log: Path) -> str:
    """The end of a log, on one line."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()[-_LAST_LINES:]
    return " | ".join(line.strip() for line in lines) or "nothing was said"


def serve(start: Callable[[], Mapping[str, Handler]]) -> int:
    """A worker's life: import, then answer until there are no more questions.

    Everything that libraries print goes to standard error, since standard output is for answers.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    handlers = start()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            reply: dict[str, Any] = {"ok": dict(handlers[message["do"]](message))}
        except Exception as error:
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:600]}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    return 0
