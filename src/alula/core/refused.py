"""What the operating system refuses: in one line, and whether a disk is full."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NUMBERED = re.compile(r"\[Errno (\d+)\] ([^:]+)")


def is_full(error: OSError) -> bool:
    """Whether there is no room on a disk; numpy says that of an array without an error number."""
    if found := _of_several(error):
        _, reason = found
        numbered = _NUMBERED.match(reason)
        return numbered is not None and int(numbered[1]) in _FULL
    return error.errno in _FULL or str(error).startswith("Not enough free space")


def in_one_line(error: OSError) -> str:
    """The path and the reason; of many files that could not be copied the first one."""
    if found := _of_several(error):
        path, reason = found
        numbered = _NUMBERED.match(reason)
        return f"{path}: {numbered[2] if numbered else reason}"
    lines = str(error).splitlines() or [type(error).__name__]
    if not isinstance(error.filename, str | bytes):
        return error.strerror or lines[0]
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def without_room(what: Path) -> OSError:
    """The error of a disk that became full while `what` was written: how much is free there and for temporary files."""
    places = dict.fromkeys([what.parent, Path(tempfile.gettempdir())])
    free = " and ".join(f"{shutil.disk_usage(place).free / 1e6:.0f} MB in {place}" for place in places)
    said = f"{os.strerror(errno.ENOSPC)}: {free} are free; make room and run the command again"
    return OSError(errno.ENOSPC, said, str(what))


def _of_several(error: OSError) -> tuple[str, str] | None:
    """Where copying a folder failed: the first path that could not be written, and why."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return None
    _, path, reason = error.args[0][0]
    return str(path), str(reason)
