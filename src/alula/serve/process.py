"""Starting and ending an engine process. Imports little, so that one is under way before anything else loads."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from alula.serve.named import Named

LEAVE_S = 5.0
"""How long the process may take to end by itself once nobody talks to it any more."""

FIRST, AGAIN = "first", "again"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProcess:
    """A process that was started, and the front's end of the socket to it."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    @classmethod
    def start(
        cls, command: Sequence[str], bundles: Sequence[Named], threads: int, *, again: bool = False
    ) -> EngineProcess:
        """Start one, which opens the bundles at once. Its stdout goes to stderr; terminal signals miss it.

        One that is started `again` proves the bundles whole, since the front did so long ago.
        """
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), str(threads), AGAIN if again else FIRST]
        for bundle in bundles:
            arguments += [str(bundle.root.absolute()), bundle.identity]
        with theirs:
            process = subprocess.Popen(
                [*command, *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
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
