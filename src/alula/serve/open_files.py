"""How many files the system lets this process have open: each connection is one."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from time import monotonic
from typing import Any

log = logging.getLogger(__name__)

OWN_FILES = 64
"""Files the front needs beside its connections: sockets of its own, libraries, what it reads of /proc."""

LOG_EVERY_S = 60.0


def connections_within(wanted: int) -> int:
    """As many connections as wanted, or as the system lets one process have; raises its soft limit if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in {soft, wanted} or soft >= wanted + OWN_FILES:
        return wanted
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = wanted + OWN_FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + OWN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = min(wanted, max(1, soft - OWN_FILES))
    if most < wanted:
        log.warning("at most %d connections, not %d: the limit of open files is %d", most, wanted, soft)
    return most


class OutOfFiles:
    """The loop's exception handler, which says once a minute, not for every try, that no file is left."""

    def __init__(self) -> None:
        self._last = -LOG_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what went wrong outside any task."""
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in context["message"]:
            return  # the loop tries again to accept, and the server has stopped listening meanwhile
        if not isinstance(error, OSError) or error.errno not in {errno.EMFILE, errno.ENFILE}:
            loop.default_exception_handler(context)
        elif monotonic() - self._last >= LOG_EVERY_S:
            self._last = monotonic()
            log.error("no file is left for a new connection, which has to wait; raise the limit (ulimit -n)")
