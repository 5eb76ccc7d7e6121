"""What a server is started with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alula.core.errors import InputError
from alula.core.words import choice

LogFormat = Literal["none", "text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("none", "text", "json")

ENGINE_COMMAND = (sys.executable, "-m", "alula.serve.engine_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Where to listen, what to serve, and the limits.

    `threads` 0 means one per usable core; `max_waiting_*` bound the queue of each model; `body_timeout_s` is how long
    the head of a request may take to arrive, and then its body; `grace_s` is how long
    admitted requests may take once the server was told to stop; `engine_command` starts the engine process.
    """

    bundles: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    threads: int = 0
    unverified: bool = False
    max_client_batch: int = 512
    max_batch_tokens: int = 16_384
    max_waiting_rows: int = 1_024
    max_waiting_tokens: int = 524_288
    max_body_bytes: int = 2_000_000
    max_connections: int = 1_000
    body_timeout_s: float = 30.0
    grace_s: float = 30.0
    run_timeout_s: float = 120.0
    log_format: LogFormat = "none"
    engine_command: tuple[str, ...] = ENGINE_COMMAND

    def __post_init__(self) -> None:
        choice("log format", self.log_format, LOG_FORMATS)
        if not self.bundles:
            raise InputError("no bundle to serve; name at least one")
        if not 0 <= self.port <= 65_535:
            raise InputError(f"port is {self.port}; expected 0..65535 (0 takes a free one)")
        for name in (
            "max_client_batch",
            "max_batch_tokens",
            "max_waiting_rows",
            "max_body_bytes",
            "max_connections",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.threads < 0 or self.grace_s < 0 or self.run_timeout_s <= 0 or self.body_timeout_s <= 0:
            raise InputError(
                "threads and grace_s must not be negative, and run_timeout_s and body_timeout_s above 0"
            )
