"""Control-C, however early."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# What is started in the background of a shell has Control-C ignored, and so would its children.
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from alula.cli import main
print(flush=True)
sys.exit(main())
"""


@pytest.mark.parametrize("after_s", [0.03, 0.06, 0.1, 0.15, 0.2])
def test_it_ends_a_command_cleanly_while_modules_are_loaded(after_s: float) -> None:
    command = [sys.executable, "-c", MAIN, "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert err == "alula: interrupted\n"
    # Python itself ends by the signal where it met it in code that was made of text; for a shell both are 130.
    assert process.returncode in {130, -signal.SIGINT}
