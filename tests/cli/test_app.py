"""What the command line says and returns when the system, the user or the reader of its output stops it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import alula
from alula.cli.app import COMMANDS, system_refused

ALULA = [sys.executable, "-m", "alula"]


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/b/x"), "/b/x: No space left on device", 1),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/b/x"), "/b/x: Disk quota exceeded", 1),
        (PermissionError(errno.EACCES, "Permission denied", b"/b/\xff"), "/b/\udcff: Permission denied", 2),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", 1),
        (ConnectionError("gone\n\nadvice"), "gone", 1),
        (TimeoutError(), "TimeoutError", 1),
        (FileNotFoundError(errno.ENOENT, "gone", alula.__file__), f"{alula.__file__}: gone", 1),
        (shutil.Error([("/a", "/b", "gone"), ("/c", "/d", "gone")]), "/b: gone", 2),
        (
            shutil.Error([("/a", "/b", "[Errno 28] No space left on device: '/a' -> '/b'")]),
            "/b: No space left on device",
            1,
        ),
    ],
)
def test_what_the_system_refuses_is_one_line(error: OSError, said: str, code: int) -> None:
    assert system_refused(error) == (said, code)


def test_a_bundle_below_a_file_is_refused_in_one_line(minilm_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "out"
    args = ["build", str(minilm_folder), "-o", str(output), "--reference", "golden"]
    env = {**os.environ, "ALULA_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*ALULA, *args], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"alula: {tmp_path / 'file'}")
    assert done.stderr.endswith(": Not a directory\n")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_output_that_cannot_be_written_is_an_error_of_one_line(more: tuple[str, ...]) -> None:
    command = [*ALULA, "doctor", *more]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch("alula: (standard output: )?No space left on device\n", done.stderr)


def test_a_reader_that_has_enough_is_no_error_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*ALULA, "doctor"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Where tests run in the background, SIGINT is ignored, and programs inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_is_said_once_and_exits_with_130(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        command = [*ALULA, "build", "some/model", "-o", str(tmp_path / "out")]
        asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        silent.settimeout(60)
        connection, _ = silent.accept()
        asking.send_signal(signal.SIGINT)
        said, complaint = asking.communicate(timeout=60)
        connection.close()
    assert (asking.returncode, said) == (130, "")
    assert complaint.endswith("alula: interrupted\n")
    assert complaint.count("interrupted") == 1
    assert "Traceback" not in complaint


def test_a_path_that_is_not_text_is_shown_escaped(tmp_path: Path) -> None:
    odd = tmp_path / "a\udcff"
    done = subprocess.run(
        [*ALULA, "inspect", str(odd)],
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 2
    assert b"a\\udcff: does not exist" in done.stderr


def help_of(*command: str) -> str:
    done = subprocess.run(
        [*ALULA, *command], capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.stderr == ""
    return " ".join(done.stdout.split())


def test_help_names_every_default() -> None:
    said = help_of("build", "--help")
    assert "What requests call the model. [default: (the checkpoint's name)]" in said
    assert (
        "Rows per call; of models that write text, answers that go on in one step. [default: (1:8:64; 1:1:64)]"
        in said
    )
    assert "(2:128:512, cut to what the model takes" in said
    assert "sequence-classification" in said.replace("- ", "-")


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_lists_every_command_with_a_line_that_is_not_cut(words: tuple[str, ...]) -> None:
    said = help_of(*words)
    assert [name for name, line in COMMANDS.items() if f"{name} {line}" not in said] == []
    assert "…" not in said
    assert "..." not in said.replace("[ARGS]...", "")
