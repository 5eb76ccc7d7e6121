"""What a server is started with.

What is declared here by `setting` is thereby a flag, a variable and a key of the file of settings (`settings.py`).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from alula.core.errors import InputError
from alula.core.machine import MOST_THREADS
from alula.serve.process import Opening
from alula.serve.settings import setting, settings_of

_GPU = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+")
"""As CUDA_VISIBLE_DEVICES names one."""

MOST_LANES, MOST_SEQUENCES = 256, 4_096
MOST_CONNECTIONS = 1_000_000
MOST_ITEMS, MOST_PIXELS = 1_000_000_000, 1_000_000_000_000
MOST_BODY_BYTES, MOST_BYTES = (1 << 31) - 1, 1 << 44
"""Of a body as much as gRPC has numbers for."""
MOST_SECONDS = 86_400

LogFormat = Literal["none", "text", "json"]

ENGINE_COMMAND = (sys.executable, "-m", "alula.serve.engine_process")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """Where to listen, what to serve, and the limits.

    gRPC is spoken where there is a `grpc_port`. `threads` 0 means one per usable core, and
    `lanes` 0 as many as answer most requests; each of `devices` has an engine process with all models, and without any
    there is one; `max_waiting_*` bound the queue
    of each model; `body_timeout_s` is how long the head of a request may take to arrive, and then its body;
    `keep_alive_s` how long a connection may be idle after it;
    `timeout_s` is how long a request may take from then on that does not say so itself, answers that are written
    excepted; `grace_s` is how long admitted requests may take
    once the server was told to stop; `engine_command` starts the engine process. The body of a request with images may
    have `max_image_bytes`, an image `max_image_pixels`, and all bodies that are here together `max_bodies_bytes`, or
    what one may have if that is more.

    Of each model that writes: `cache_bytes` is what keys and values may take, None for what fits the machine,
    `max_sequences` how many answers are written at once, `max_waiting` how many more may wait, and `answer_timeout_s`
    how long one may take, its wait included.

    Where there are keys, in `keys_file` or in `api_keys` (lines of such a file with semicolons between them), nobody is
    answered without one, but for health and, unless the server is `private`, metrics and docs. `key_requests` may be in
    flight of each key and `key_per_minute` may come, 0 for any number; without keys both hold for everybody together.
    """

    bundles: tuple[Path, ...] = setting((), "Folders of bundles.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8_000, "Port to listen on; 0 takes a free one.", least=0, most=65_535)
    grpc_port: int | None = setting(None, "Port to speak gRPC on.", least=1, most=65_535, unset="no gRPC")
    threads: int = setting(0, "Threads per engine; 0 is one per usable core.", least=0, most=MOST_THREADS)
    lanes: int = setting(
        0,
        "Batches of a model beside one another on the CPU; 1 answers a lone request sooner.",
        least=0,
        most=MOST_LANES,
    )
    devices: tuple[str, ...] = setting(
        (),
        "GPU to run an engine process of its own on, as CUDA numbers it; once for each.",
        name="device",
        metavar="GPU",
    )
    unverified: bool = setting(False, "Serve a bundle whose checks did not pass.")
    repository: str = setting(
        "", "Folder of bundles that may be loaded and unloaded while serving.", metavar="FOLDER", unset="none"
    )
    memory_bytes: int | None = setting(
        None,
        "Memory that all models may take, such as 8GiB.",
        name="memory",
        amount=True,
        least=1,
        most=MOST_BYTES,
        unset="no limit",
    )
    unload_idle: bool = setting(
        False, "Where memory does not do, unload who was not used for longest until it is asked for again."
    )
    max_client_batch: int = setting(512, "Items one request may bring.", least=1, most=MOST_ITEMS)
    max_batch_tokens: int = setting(16_384, "Padded tokens of one engine call.", least=1, most=MOST_ITEMS)
    max_batch_bytes: int = setting(
        268_435_456, "Bytes of what goes into one engine call and comes out of it.", least=1, most=MOST_BYTES
    )
    max_waiting_rows: int = setting(
        1_024, "Rows that may wait per model; beyond that 429.", least=1, most=MOST_ITEMS
    )
    max_waiting_tokens: int = setting(
        524_288, "Tokens that may wait per model; beyond that 429.", least=1, most=MOST_ITEMS
    )
    cache_bytes: int | None = setting(
        None,
        "Writing: memory for keys and values per model, such as 2GiB.",
        name="kv_cache",
        amount=True,
        least=1,
        most=MOST_BYTES,
        unset="what fits",
    )
    max_sequences: int = setting(32, "Writing: answers at once per model.", least=1, most=MOST_SEQUENCES)
    max_waiting: int = setting(
        256, "Writing: answers that may wait; beyond that 429.", least=1, most=MOST_ITEMS
    )
    answer_timeout_s: float = setting(
        600.0, "Writing: seconds an answer may take, waiting included.", above=0, most=MOST_SECONDS
    )
    max_body_bytes: int = setting(2_000_000, "Size of a request's body.", least=1, most=MOST_BODY_BYTES)
    max_bodies_bytes: int = setting(
        268_435_456, "Size of all bodies that are here; beyond that 429.", least=1, most=MOST_BYTES
    )
    max_image_bytes: int = setting(
        16_000_000, "Size of a request's body with images in it.", least=1, most=MOST_BODY_BYTES
    )
    max_image_pixels: int = setting(50_000_000, "Pixels of an image.", least=1, most=MOST_ITEMS)
    max_waiting_pixels: int = setting(
        1_000_000_000,
        "Pixels of images that may wait to be decoded, per model; beyond that 429.",
        least=1,
        most=MOST_PIXELS,
    )
    max_connections: int = setting(
        1_000, "Connections at once; beyond that 503.", least=1, most=MOST_CONNECTIONS
    )
    keep_alive_s: int = setting(
        75, "Seconds a connection may be idle between two requests.", least=1, most=3_600
    )
    body_timeout_s: float = setting(30.0, "Seconds a request's body may take to arrive.", above=0, most=3_600)
    timeout_s: float = setting(
        30.0, "Seconds a request may take that does not say so itself.", above=0, most=3_600
    )
    grace_s: float = setting(
        30.0, "Seconds admitted requests may take after SIGTERM.", least=0, most=MOST_SECONDS
    )
    run_timeout_s: float = setting(
        120.0, "Seconds an engine call may take before it counts as hung.", above=0, most=MOST_SECONDS
    )
    keys_file: str = setting(
        "", "File of API keys, lines of NAME KEY.", metavar="FILE", unset="no key is needed"
    )
    api_keys: str = setting(
        "",
        "API keys, semicolons between them; better in a file or in the environment.",
        secret=True,
        metavar="KEYS",
    )
    key_requests: int = setting(0, "Requests of one key at once; 0 for any number.", least=0, most=MOST_ITEMS)
    key_per_minute: int = setting(
        0, "Requests of one key a minute; 0 for any number.", least=0, most=MOST_ITEMS
    )
    private: bool = setting(False, "Ask for a key for metrics and docs, too.")
    fallback: tuple[str, ...] = setting(
        (),
        "Bundle that answers where a served model's own engine cannot, of the same checkpoint.",
        metavar="BUNDLE",
    )
    degrade: bool = setting(True, "Let fallbacks answer; without it requests are refused instead.")
    degrade_wait_s: float = setting(
        5.0, "Seconds that what waits may take before a fallback answers.", above=0, most=3_600
    )
    canary_s: float = setting(
        30.0,
        "Seconds between small requests that show that each engine answers rightly; 0 for none.",
        least=0,
        most=MOST_SECONDS,
    )
    log_format: LogFormat = setting("none", "Log of requests on stderr.")
    traces: bool = setting(False, "Send OpenTelemetry's traces; OTEL_* variables say where to.")
    engine_command: tuple[str, ...] = ENGINE_COMMAND

    def __post_init__(self) -> None:
        for each in settings_of(ServeOptions):
            each.check(getattr(self, each.field), each.field)
        if not self.bundles and not self.repository:
            raise InputError("no bundle to serve; name at least one, or a folder of them with --repository")
        if self.repository and not Path(self.repository).is_dir():
            raise InputError(f"{self.repository}: is no folder; expected one of bundles for --repository")
        wrong = [each for each in self.devices if not _GPU.fullmatch(each) or self.devices.count(each) > 1]
        if wrong:
            raise InputError(
                f"device {wrong[0]!r}: expected each GPU once, by its number or its UUID: --device 0 --device 1"
            )
        if self.grpc_port == self.port:
            raise InputError(f"port and grpc_port are both {self.port}; expected two ports")

    @property
    def opening(self) -> Opening:
        """How the first engine process is to open the bundles."""
        return self.openings[0]

    @property
    def openings(self) -> tuple[Opening, ...]:
        """The same of every engine process, one for each device that is named."""
        return tuple(self._opening(device) for device in self.devices or ("",))

    def _opening(self, device: str) -> Opening:
        return Opening(
            threads=self.threads,
            lanes=self.lanes,
            cache_bytes=self.cache_bytes,
            sequences=self.max_sequences,
            taken=self.max_sequences + self.max_waiting,
            log_format=self.log_format,
            device=device,
        )
