"""What clients meet when the engine process of a server is killed under load, with and without a fallback.

    python examples/kill_engine.py BUNDLE [--fallback BUNDLE2] [--clients 8]

Clients ask one after the other over connections that stay open. Said are: requests, those that failed, those that the
fallback answered, the seconds from the kill to the first answer of the new engine process, and the longest request.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

TEXT = "A parrot sat on the fence and talked."
BEFORE_S, AFTER_S = 3.0, 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One request: when it began and ended, its status, and why something cheaper answered it, if so."""

    began: float
    ended: float
    status: int
    degraded: str


def main(argv: Sequence[str] | None = None) -> None:
    """Kill the engine process of one server, and print what its clients met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--fallback")
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args(argv)
    more = ["--fallback", given.fallback] if given.fallback else []
    with server([given.bundle, *more]) as url:
        killed, answers = asked(url, given.clients)
    print(json.dumps(summary(killed, answers)))


@contextmanager
def server(words: Sequence[str]) -> Iterator[str]:
    """The address of a server that lasts as long as this."""
    command = [sys.executable, "-m", "alula", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline().split()
        if len(said) < 3:
            sys.exit(process.stderr.read())
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield said[2]
    finally:
        process.terminate()
        process.wait(60)


def asked(url: str, clients: int) -> tuple[float, list[Answer]]:
    """When the engine process was killed, and every answer."""
    answers: list[Answer] = []
    over = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=url, timeout=60) as connection:
            while not over.is_set():
                began = time.monotonic()
                given = connection.post("/embed", json={"inputs": TEXT})
                degraded = given.headers.get("x-alula-degraded", "")
                ended = time.monotonic()
                answers.append(Answer(began=began, ended=ended, status=given.status_code, degraded=degraded))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(BEFORE_S)
    pid = int(httpx.get(f"{url}/health").json()["engine"]["pid"])
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    time.sleep(AFTER_S)
    over.set()
    for thread in threads:
        thread.join()
    return killed, answers


def summary(killed: float, answers: Sequence[Answer]) -> dict[str, float]:
    """The figures; an engine process that did not come back is an error."""
    own = [each for each in answers if each.status == 200 and not each.degraded and each.began > killed]
    if not own:
        sys.exit(f"no answer of a new engine process within {AFTER_S:g} s")
    return {
        "requests": len(answers),
        "failed": sum(each.status != 200 for each in answers),
        "by_fallback": sum(bool(each.degraded) for each in answers),
        "back_s": round(min(each.ended for each in own) - killed, 2),
        "longest_s": round(max(each.ended - each.began for each in answers), 2),
    }


if __name__ == "__main__":
    main()
