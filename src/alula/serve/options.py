"""What a server is started with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alula.core.errors import InputError
from alula.core.words import choice
from alula.serve.process import Opening

LogFormat = Literal["none", "text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("none", "text", "json")

ENGINE_COMMAND = (sys.executable, "-m", "alula.serve.engine_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Where to listen, what to serve, and the limits.

    gRPC is spoken where there is a `grpc_port`. `threads` 0 means one per usable core; `max_waiting_*` bound the queue
    of each model; `body_timeout_s` is how long the head of a request may take to arrive, and then its body;
    `timeout_s` is how long a request may take from then on that does not say so itself, answers that are written
    excepted; `grace_s` is how long admitted requests may take
    once the server was told to stop; `engine_command` starts the engine process. The body of a request with images may
    have `max_image_bytes`, an image `max_image_pixels`, and all bodies that are here together `max_bodies_bytes`, or
    what one may have if that is more.

    Of each model that writes: `cache_bytes` is what keys and values may take, None for what fits the machine,
    `max_sequences` how many answers are written at once, `max_waiting` how many more may wait, and `answer_timeout_s`
    how long one may take, its wait included.
    """

    bundles: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    threads: int = 0
    unverified: bool = False
    max_client_batch: int = 512
    max_batch_tokens: int = 16_384
    max_waiting_rows: int = 1_024
    max_waiting_tokens: int = 524_288
    max_body_bytes: int = 2_000_000
    max_bodies_bytes: int = 268_435_456
    max_image_bytes: int = 16_000_000
    max_image_pixels: int = 50_000_000
    max_connections: int = 1_000
    body_timeout_s: float = 30.0
    timeout_s: float = 30.0
    grace_s: float = 30.0
    run_timeout_s: float = 120.0
    cache_bytes: int | None = None
    max_sequences: int = 32
    max_waiting: int = 256
    answer_timeout_s: float = 600.0
    log_format: LogFormat = "none"
    engine_command: tuple[str, ...] = ENGINE_COMMAND

    def __post_init__(self) -> None:
        choice("log format", self.log_format, LOG_FORMATS)
        if not self.bundles:
            raise InputError("no bundle to serve; name at least one")
        if not 0 <= self.port <= 65_535:
            raise InputError(f"port is {self.port}; expected 0..65535 (0 takes a free one)")
        if self.grpc_port is not None and not 1 <= self.grpc_port <= 65_535:
            raise InputError(f"grpc_port is {self.grpc_port}; expected 1..65535")
        if self.grpc_port == self.port:
            raise InputError(f"port and grpc_port are both {self.port}; expected two ports")
        for name in (
            "max_client_batch",
            "max_batch_tokens",
            "max_waiting_rows",
            "max_body_bytes",
            "max_bodies_bytes",
            "max_image_bytes",
            "max_image_pixels",
            "max_connections",
            "max_sequences",
            "max_waiting",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.cache_bytes is not None and self.cache_bytes < 1:
            raise InputError(f"cache_bytes is {self.cache_bytes}; expected at least 1")
        if self.answer_timeout_s <= 0:
            raise InputError(f"answer_timeout_s is {self.answer_timeout_s}; expected more than 0")
        if not 0 < self.timeout_s <= 3_600:
            raise InputError(f"timeout_s is {self.timeout_s}; expected more than 0 and at most 3600")
        if self.threads < 0 or self.grace_s < 0 or self.run_timeout_s <= 0 or self.body_timeout_s <= 0:
            raise InputError(
                "threads and grace_s must not be negative, and run_timeout_s and body_timeout_s above 0"
            )

    @property
    def opening(self) -> Opening:
        """How the engine process is to open the bundles."""
        return Opening(
            threads=self.threads,
            cache_bytes=self.cache_bytes,
            sequences=self.max_sequences,
            taken=self.max_sequences + self.max_waiting,
        )
