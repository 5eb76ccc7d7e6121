"""The command line: parse, call, print."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Run one command; Control-C ends it cleanly from the first import on."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leave)
    try:
        from alula.cli.app import main as run  # noqa: PLC0415 - what takes longest is not begun before

        return run()
    finally:
        loaded()


def loaded() -> None:
    """From here on Control-C is an exception again, so that what was begun can be put right."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """While modules are loaded nothing is begun yet, and an exception in the middle of one would be shown."""
    os.write(2, b"alula: interrupted\n")
    os._exit(INTERRUPTED)
