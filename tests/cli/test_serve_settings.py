from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from served import free_port, wait_until

ALULA = [sys.executable, "-m", "alula", "serve"]


def asked(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ALULA_")}
    return subprocess.run(
        [*ALULA, *args], capture_output=True, text=True, check=False, env={**own, **environment}
    )


def test_what_is_printed_can_be_fed_back(tmp_path: Path) -> None:
    file = tmp_path / "alula.toml"
    file.write_text('bundles = ["one", "two"]\nport = 9000\ntimeout_s = 5\nunverified = true\n')
    first = asked(
        "--config", str(file), "--timeout-s", "7", "--no-unverified", "--print-config", ALULA_PORT="9001"
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert f'bundles = ["one", "two"]  # file: {file}\n' in first.stdout
    assert "port = 9001  # environment: ALULA_PORT\n" in first.stdout
    assert "timeout_s = 7.0  # command line\n" in first.stdout
    assert "unverified = false  # command line\n" in first.stdout
    assert 'host = "127.0.0.1"  # default\n' in first.stdout
    file.write_text(first.stdout)
    again = asked("--print-config", ALULA_CONFIG=str(file))
    assert values(again.stdout) == values(first.stdout)


def values(text: str) -> list[str]:
    return [line.partition("  # ")[0] for line in text.splitlines()]


def test_settings_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "alula.toml"
    file.write_text("tiemout_s = 5\n")
    done = asked("--config", str(file), "one")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"alula: {file}: no setting 'tiemout_s'; did you mean timeout_s?\n"
    assert asked("--print-config", ALULA_THREADS="-1").stderr == (
        "alula: ALULA_THREADS is -1; expected 0..1024\n"
    )
    assert asked("--port", "8001", "--grpc-port", "8001", "--print-config").stderr == (
        "alula: port and grpc_port are both 8001; expected two ports\n"
    )


def test_a_bundle_on_the_command_line_stands_for_those_elsewhere() -> None:
    done = asked("three", "--print-config", ALULA_BUNDLES="one:two")
    assert 'bundles = ["three"]  # command line\n' in done.stdout


def test_a_log_that_cannot_be_written_ends_no_server(tmp_path: Path) -> None:
    port = free_port()
    command = [*ALULA, "--repository", str(tmp_path), "--port", str(port), "--log-format", "json"]
    with Path("/dev/full").open("w") as full, subprocess.Popen(command, stderr=full) as server:

        def answers() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                    client.sendall(b"GET /health/ready HTTP/1.1\r\nhost: a\r\n\r\n")
                    return client.recv(64).startswith(b"HTTP/1.1 200 ")
            except OSError:
                assert server.poll() is None
                return False

        try:
            wait_until(answers, within_s=20)
            time.sleep(0.5)  # it says that it is ready
            assert answers()
        finally:
            server.terminate()
    assert server.returncode == 0
