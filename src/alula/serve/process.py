"""Starting and ending an engine process. Imports little, so that one is under way before anything else loads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from alula.serve.named import Named

LEAVE_S = 5.0
"""How long the process may take to end by itself once nobody talks to it any more."""


LOST_DEVICE = 70
"""What the process ends with when its device is of no use to it any more, so that whoever started it knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """How an engine process opens its bundles.

    `threads` 0 means one per usable core, `lanes` 0 what is best for many calls. Of each model that writes:
    `cache_bytes` is what keys and values may take, None for what fits the machine; `sequences` how many answers are
    written at once, and `taken` how many there may be with those that wait. One that is opened `again` proves the
    bundles whole, since the front did so long ago. It logs in the form of the front, and sees no GPU but `device`,
    named as in CUDA_VISIBLE_DEVICES, unless that is empty.
    """

    threads: int = 0
    lanes: int = 0
    cache_bytes: int | None = None
    sequences: int = 32
    taken: int = 288
    again: bool = False
    log_format: str = "none"
    device: str = ""

    def argument(self) -> str:
        """As an argument of the command line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, argument: str) -> Opening:
        """What `argument` wrote."""
        return cls(**json.loads(argument))


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProcess:
    """A process that was started, and the front's end of the socket to it."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    @classmethod
    def start(cls, command: Sequence[str], bundles: Mapping[int, Named], opening: Opening) -> EngineProcess:
        """Start one, which opens the bundles at once, each under its number.

        Its stdout goes to stderr; terminal signals miss it.
        """
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), opening.argument()]
        for number, bundle in bundles.items():
            arguments += [str(number), str(bundle.root.absolute()), bundle.identity]
        with theirs:
            process = subprocess.Popen(
                [*command, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                env={**os.environ, **({"CUDA_VISIBLE_DEVICES": opening.device} if opening.device else {})},
            )
        ours.setblocking(False)
        return cls(process=process, connection=ours)

    def end(self, wait_s: float = LEAVE_S) -> None:
        """Close the socket, on which the process leaves; kill it if it does not. Blocks."""
        self.connection.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
