"""A folder put in another's place, all at once: readers see the old one or the new one."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alula.core.errors import InputError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def beside(to: Path, purpose: str) -> Path:
    """A hidden name beside `to` for this process; what processes that are gone have left there is removed."""
    for left in to.parent.glob(f".{to.name}.*.{purpose}"):
        pid = left.name.split(".")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    scratch = to.with_name(f".{to.name}.{os.getpid()}.{purpose}")
    shutil.rmtree(scratch, ignore_errors=True)
    return scratch


def put(scratch: Path, to: Path) -> None:
    """Rename `scratch` to `to`; a folder that stood there is gone afterwards."""
    if not to.exists():
        scratch.rename(to)
        return
    if not _exchange(scratch, to):
        _swap(scratch, to)
    shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def alone(to: Path, *, waits: bool = False) -> Iterator[None]:
    """Hold the right to write `to`; a second process is refused unless it waits."""
    if sys.platform == "win32":
        yield
        return
    import fcntl  # noqa: PLC0415 - not everywhere

    folder = temporary_folder()
    real = os.path.realpath(to)
    name = hashlib.sha256(real.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{to}: another process is writing it; wait for it or name another folder"
            ) from error
        yield


def temporary_folder() -> Path:
    """A folder for this user's temporary files, which others cannot read."""
    folder = Path(tempfile.gettempdir()) / f"alula-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names at once, where the system can."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.ENOSYS, errno.EINVAL}:  # an old kernel, or a file system that cannot
        return False
    raise OSError(code, os.strerror(code), str(other))


def _swap(scratch: Path, to: Path) -> None:
    """The same in two steps, undone if the second fails; `scratch` holds the old folder afterwards."""
    old = to.with_name(f"{scratch.name}.old")
    to.rename(old)
    try:
        scratch.rename(to)
    except BaseException:
        old.rename(to)
        raise
    old.rename(scratch)
