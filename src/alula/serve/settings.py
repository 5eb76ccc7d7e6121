"""Settings of a server under one name each: as a flag, in the environment, in a TOML file.

A field of a frozen dataclass that is made by `setting` is one; whoever adds such a field has its flag, its variable,
its key in the file, its limits and its line of `--print-config` with it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from alula.core.errors import InputError
from alula.core.units import bytes_as_text, parse_bytes

PREFIX = "ALULA_"
CONFIG = "ALULA_CONFIG"
OTHERS = frozenset({CONFIG, "ALULA_CACHE"})
"""Variables that mean something, and are no settings."""

KINDS: Mapping[Any, str] = {
    bool: "flag",
    int: "whole number",
    float: "number",
    str: "text",
    tuple[Path, ...]: "folders",
    tuple[str, ...]: "texts",
}
WORDS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_DIGITS = re.compile("[0-9]{1,18}")
SEPARATORS: Mapping[str, str] = {"folders": os.pathsep, "texts": ","}
"""Between the items of a list in a variable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What is told of a setting beside its type and default."""

    help: str
    name: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    amount: bool = False
    secret: bool = False
    unset: str = ""
    metavar: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One thing that can be set; `field` is where the value goes, `name` what it is called everywhere.

    `kind` says how it is written: an amount as text with a unit (2GiB), bytes, whose name says what they are, with one
    or without, folders and texts as lists. `least` and `most` belong to what is allowed, `above` does not.
    """

    name: str
    field: str
    kind: str
    default: Any
    choices: tuple[str, ...]
    told: Told

    @property
    def flag(self) -> str:
        """As an option of the command line; folders are its arguments."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """In the environment."""
        return PREFIX + self.name.upper()

    def check(self, value: Any, where: str) -> None:
        """Refuse what is outside the limits, as given at `where`."""
        told = self.told
        if self.choices and value not in self.choices:
            raise InputError(f"{where} is {value!r}; expected one of: {', '.join(self.choices)}")
        if value is None or not isinstance(value, int | float):
            return
        low = told.least is not None and not value >= told.least
        if low or (told.most is not None and not value <= told.most) or not self._above(value):
            raise InputError(f"{where} is {value}; expected {self._expected()}")

    def _above(self, value: float) -> bool:
        return self.told.above is None or value > self.told.above

    def _expected(self) -> str:
        told = self.told
        if told.least is not None and told.most is not None:
            return f"{told.least}..{told.most}"
        low = f"at least {told.least}" if told.least is not None else ""
        low = low or (f"more than {told.above}" if told.above is not None else "")
        high = f"at most {told.most}" if told.most is not None else ""
        return " and ".join(filter(None, (low, high)))

    def from_text(self, text: str, where: str) -> Any:
        """The value that a variable or a flag spells."""
        if separator := SEPARATORS.get(self.kind):
            items = [item for item in text.split(separator) if item.strip()]
            if not items:
                raise InputError(
                    f"{where} is {text!r}, which names nothing; expected one or more, {separator!r} between"
                )
            return tuple(map(Path, items)) if self.kind == "folders" else tuple(map(str.strip, items))
        if self.kind == "flag":
            if text.lower() not in WORDS:
                raise InputError(f"{where} is {text!r}; expected one of: {', '.join(WORDS)}")
            return WORDS[text.lower()]
        if self.kind == "bytes" and _DIGITS.fullmatch(text):
            return int(text)
        if self.kind in {"text", "amount", "bytes"}:
            return self.from_file(text, where)
        try:
            return int(text) if self.kind == "whole number" else float(text)
        except ValueError:
            raise InputError(f"{where} is {text!r}; expected a {self.kind}") from None

    def from_file(self, value: Any, where: str) -> Any:
        """The value that stands in the file, of the type that TOML has for it."""
        if self.kind in {"amount", "bytes"} and isinstance(value, str):
            return parse_bytes(where, value)
        if self.kind in SEPARATORS and isinstance(value, list) and all(isinstance(v, str) for v in value):
            return tuple(map(Path, value)) if self.kind == "folders" else tuple(value)
        if not isinstance(value, TYPES.get(self.kind, ())) or (
            isinstance(value, bool) and self.kind != "flag"
        ):
            raise InputError(f"{where} is {value!r}; expected {EXPECTED[self.kind]}")
        return value + 0.0 if isinstance(value, int) and self.kind == "number" else value


TYPES: Mapping[str, tuple[type, ...]] = {
    "flag": (bool,),
    "whole number": (int,),
    "bytes": (int,),
    "number": (int, float),
    "text": (str,),
}
EXPECTED: Mapping[str, str] = {
    "flag": "true or false",
    "whole number": "a whole number",
    "number": "a number",
    "text": "a text",
    "amount": 'a text such as "2GiB"',
    "bytes": 'a whole number, or a text such as "2GiB"',
    "folders": "a list of texts",
    "texts": "a list of texts",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The value of every setting by its field, and where each came from, in words."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def setting(default: Any, help: str, **told: Any) -> Any:
    """A field of a dataclass that can be set; `told` is what `Told` has."""
    said = Told(help=help, **told)
    return field(default=default, repr=not said.secret, metadata={"told": said})


@cache
def settings_of(owner: type) -> tuple[Setting, ...]:
    """Every setting that a dataclass declares, in its order."""
    hints = get_type_hints(owner)
    return tuple(
        _setting(each, hints[each.name], told)
        for each in fields(owner)
        if (told := each.metadata.get("told"))
    )


def _setting(each: Field[Any], hint: Any, told: Told) -> Setting:
    kinds = [kind for kind in (hint, *get_args(hint)) if kind in KINDS]
    literal = next((kind for kind in (hint, *get_args(hint)) if _is_literal(kind)), None)
    kind, name = "amount" if told.amount else "text" if literal else KINDS[kinds[0]], told.name or each.name
    return Setting(
        name=name,
        field=each.name,
        kind="bytes" if kind == "whole number" and name.endswith("_bytes") else kind,
        default=each.default,
        choices=get_args(literal),
        told=told,
    )


def _is_literal(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is Literal


def resolve(
    owner: type, flags: Mapping[str, Any], environment: Mapping[str, str], config: Path | None = None
) -> Resolved:
    """What holds: a flag before the environment, that before the file, that before the default.

    `flags` are the values that were given on the command line, by field. Whatever is named that nobody knows is
    refused, and so is a value that cannot be; the message says where it stands.
    """
    known = settings_of(owner)
    if config is None and environment.get(CONFIG):
        config = Path(environment[CONFIG])
    file = {} if config is None else _read(config)
    _refuse_unknown(known, file, environment, config)
    values, origins = {}, {}
    for each in known:
        values[each.field], where, origins[each.field] = _found(each, flags, environment, file, config)
        each.check(values[each.field], where)
    return Resolved(values=values, origins=origins)


def _found(
    each: Setting,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    config: Path | None,
) -> tuple[Any, str, str]:
    """The value of one setting, where it stands, and where it came from.

    What a file says has to be right also where a flag or a variable holds instead: it will hold one day.
    """
    where = f"{config}: {each.name}"
    of_file = each.from_file(file[each.name], where) if each.name in file else None
    if each.field in flags:
        return flags[each.field], each.flag, "command line"
    if text := _variable(each, environment):
        return each.from_text(text, each.variable), each.variable, f"environment: {each.variable}"
    if each.name in file:
        return of_file, where, f"file: {config}"
    return each.default, each.name, "default"


def _variable(each: Setting, environment: Mapping[str, str]) -> str:
    """What a variable says; an empty one says nothing, and an address is Kubernetes', which names them like ours."""
    text = environment.get(each.variable, "")
    return "" if each.name == "port" and text.startswith("tcp://") else text


def _read(path: Path) -> Mapping[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - only where there is a file
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the settings in {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path} is no TOML: {error}") from error


def _refuse_unknown(
    known: Sequence[Setting], file: Mapping[str, Any], environment: Mapping[str, str], config: Path | None
) -> None:
    names = [each.name for each in known]
    for name in file:
        if name not in names:
            raise InputError(f"{config}: no setting {name!r}; {_nearest(name, names)}")
    variables = [each.variable for each in known]
    for name in environment:
        if name.startswith(PREFIX) and name not in {*variables, *OTHERS} and not _of_kubernetes(name):
            raise InputError(f"environment: no setting {name}; {_nearest(name, variables)}")


def _of_kubernetes(name: str) -> bool:
    """What Kubernetes sets in every container beside a service that is called alula."""
    rest = name.removeprefix(PREFIX)
    return rest.startswith("SERVICE_") or (rest.startswith("PORT_") and rest[5:6].isdigit())


def _nearest(name: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only to refuse something

    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def as_toml(owner: type, resolved: Resolved) -> str:
    """The settings as a file from which the same are read, each with where it came from; secrets are left out."""
    return "".join(f"{line}\n" for line in _lines(owner, resolved))


def _lines(owner: type, resolved: Resolved) -> Iterator[str]:
    for each in settings_of(owner):
        value, origin = resolved.values[each.field], resolved.origins[each.field]
        if each.told.secret and value:
            yield f"# {each.name}: secret, not printed ({origin})"
        elif value is None:
            yield f"# {each.name}: not set{each.told.unset and ': '}{each.told.unset}"
        else:
            yield f"{each.name} = {_written(each, value)}  # {origin}"


def _written(each: Setting, value: Any) -> str:
    if each.kind == "amount":
        return _text(bytes_as_text(value))
    if each.kind == "flag":
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_text(str(item)) for item in value)}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
