"""Who calls: keys, the names behind them, and how much each may ask for. Pure but for reading the file of keys."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from alula.core.errors import InputError
from alula.serve.errors import Refused
from alula.serve.terms import PRIORITIES, Priority, named

VARIABLE = "ALULA_API_KEYS"
"""The variable of the environment that may hold what a file of keys does, with semicolons for ends of lines."""

HEADERS = ("authorization", "api-key", "x-api-key")
"""Where a key may stand, over HTTP and, as metadata, over gRPC."""

SHORTEST = 8
"""Characters of a key: a shorter one is a mistake."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Somebody with a key. 0 is no limit of `at_once`, requests in flight, and of `per_minute`.

    An `admin` may load and unload models.
    """

    name: str = ""
    at_once: int = 0
    per_minute: int = 0
    highest: Priority = "high"
    admin: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Callers:
    """All who have a key, by the digests of their keys; where there are none, everybody is let in as `anybody`."""

    keys: tuple[tuple[bytes, Caller], ...] = ()
    anybody: Caller = Caller()

    @property
    def keyed(self) -> bool:
        """Whether a key is needed."""
        return bool(self.keys)

    def of(self, headers: Mapping[str, str]) -> Caller:
        """Who has the key that a request shows. Every key is compared, each in the same time."""
        if not self.keyed:
            return self.anybody
        shown = presented(headers)
        if not shown:
            raise Refused(
                "no API key; expected Authorization: Bearer KEY, or api-key: KEY",
                status=401,
                code="invalid_api_key",
            )
        digest, found = _digest(shown), None
        for its, caller in self.keys:
            if hmac.compare_digest(its, digest):
                found = caller
        if found is None:
            raise Refused("the API key is not one that this server knows", status=401, code="invalid_api_key")
        return found


def presented(headers: Mapping[str, str]) -> str:
    """The key that a request shows, wherever it stands; headers by their names in small letters."""
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return next((headers[name].strip() for name in HEADERS[1:] if headers.get(name, "").strip()), "")


def read(file: Path | None, variable: str, anybody: Caller) -> Callers:
    """The callers of a file and of the environment together, each limited as `anybody` unless its line says more."""
    found: list[tuple[bytes, Caller]] = []
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: the file of keys cannot be read: {error}") from error
        found += parsed(lines, str(file), anybody)
        if not found:
            raise InputError(f"{file}: no key in it; expected lines of NAME KEY")
    of_variable = parsed(variable.split(";"), VARIABLE, anybody)
    if variable and not of_variable:
        raise InputError(f"{VARIABLE}: no key in it; expected NAME KEY, several with ; between them")
    found += of_variable
    names = [caller.name for _, caller in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two keys have the name {twice[0]!r}; expected a name for each")
    owners: dict[bytes, str] = {}
    for digest, caller in found:
        if digest in owners:
            raise InputError(
                f"{owners[digest]!r} and {caller.name!r} have the same key; expected one for each"
            )
        owners[digest] = caller.name
    return Callers(keys=tuple(found), anybody=anybody)


def parsed(lines: Iterable[str], where: str, usual: Caller) -> list[tuple[bytes, Caller]]:
    """Lines of `NAME KEY [at_once=N] [per_minute=N] [highest=PRIORITY] [admin]`, or of a key alone.

    # begins a remark.
    """
    found = []
    for at, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if words:
            name_first = words if len(words) > 1 else [f"key-{at}", *words]
            found.append(_line(name_first, f"{where}: line {at}", usual))
    return found


def _line(words: Sequence[str], where: str, usual: Caller) -> tuple[bytes, Caller]:
    """One caller. No error says what stands in place of a key."""
    if not _NAME.fullmatch(words[0]):
        raise InputError(f"{where}: expected NAME KEY, the name of letters, digits, '.', '_' and '-'")
    name, key, *limits = words
    if len(key) < SHORTEST or not key.isascii():
        raise InputError(
            f"{where}: the key of {name} is no key; expected {SHORTEST} ASCII characters or more"
        )
    caller = replace(usual, name=name)
    for limit in limits:
        what, _, value = limit.partition("=")
        if limit == "admin":
            caller = replace(caller, admin=True)
        elif what == "highest":
            caller = replace(caller, highest=named(value, f"{where}: highest"))
        elif what in {"at_once", "per_minute"} and value.isascii() and value.isdigit() and len(value) < 10:
            amount = int(value)
            caller = (
                replace(caller, at_once=amount) if what == "at_once" else replace(caller, per_minute=amount)
            )
        else:
            raise InputError(
                f"{where}: {what!r} is no limit; expected at_once=N, per_minute=N "
                f"highest={'|'.join(PRIORITIES)} or admin"
            )
    return _digest(key), caller


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
