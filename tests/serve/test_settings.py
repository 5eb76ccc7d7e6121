from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

import pytest

from alula.core.errors import InputError
from alula.serve import ServeOptions
from alula.serve.settings import as_toml, resolve, setting, settings_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    folders: tuple[Path, ...] = setting((), "Folders.")
    colour: Literal["red", "green"] = setting("red", "A colour.")
    port: int = setting(8, "A port.", least=0, most=9)
    seconds: float = setting(1.5, "Some time.", above=0)
    shown: bool = setting(True, "Whether.")
    room_bytes: int | None = setting(None, "Some room.", name="room", amount=True, unset="what fits")
    words: tuple[str, ...] = setting((), "Some words.")
    keys: tuple[str, ...] = setting((), "Keys.", secret=True)
    body_bytes: int = setting(4_000, "A body.", least=1)
    inner: int = 3


def resolved(
    flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> dict[str, Any]:
    return dict(resolve(Made, flags or {}, environment or {}, file).values)


def test_every_field_that_is_a_setting_is_one_and_no_other() -> None:
    assert [(each.name, each.kind) for each in settings_of(Made)] == [
        ("folders", "folders"),
        ("colour", "text"),
        ("port", "whole number"),
        ("seconds", "number"),
        ("shown", "flag"),
        ("room", "amount"),
        ("words", "texts"),
        ("keys", "texts"),
        ("body_bytes", "bytes"),
    ]


def test_a_flag_goes_before_the_environment_that_before_the_file_that_before_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("port = 1\nseconds = 2\ncolour = 'green'\n")
    environment = {"ALULA_PORT": "2", "ALULA_SECONDS": "3", "ALULA_SHOWN": ""}
    found = resolve(Made, {"port": 3}, environment, file)
    assert found.values["port"] == 3
    assert found.values["seconds"] == 3.0
    assert found.values["colour"] == "green"
    assert found.values["shown"] is True
    assert found.origins["port"] == "command line"
    assert found.origins["seconds"] == "environment: ALULA_SECONDS"
    assert found.origins["colour"] == f"file: {file}"
    assert found.origins["shown"] == "default"


def test_the_environment_may_name_the_file_and_a_flag_another(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("port = 1")
    other.write_text("port = 2")
    assert resolved(environment={"ALULA_CONFIG": str(one)})["port"] == 1
    assert resolved(environment={"ALULA_CONFIG": str(one)}, file=other)["port"] == 2


def test_what_variables_spell_is_read_by_the_kind_of_the_setting() -> None:
    found = resolved(
        environment={
            "ALULA_FOLDERS": "a:b/c",
            "ALULA_SHOWN": "No",
            "ALULA_ROOM": "2GiB",
            "ALULA_WORDS": "one, two",
        }
    )
    assert found["folders"] == (Path("a"), Path("b/c"))
    assert found["shown"] is False
    assert found["room_bytes"] == 2**31
    assert found["words"] == ("one", "two")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"ALULA_PROT": "1"}, r"environment: no setting ALULA_PROT; did you mean ALULA_PORT\?"),
        ({"ALULA_PORT": "ten"}, "ALULA_PORT is 'ten'; expected a whole number"),
        ({"ALULA_PORT": "10"}, r"ALULA_PORT is 10; expected 0\.\.9"),
        ({"ALULA_SECONDS": "0"}, r"ALULA_SECONDS is 0\.0; expected more than 0"),
        ({"ALULA_SECONDS": "nan"}, r"ALULA_SECONDS is nan; expected more than 0"),
        ({"ALULA_SHOWN": "perhaps"}, "ALULA_SHOWN is 'perhaps'; expected one of: 1, true, yes, on"),
        ({"ALULA_ROOM": "2"}, "ALULA_ROOM '2': expected a number with one of GiB"),
        (
            {"ALULA_WORDS": ", "},
            "ALULA_WORDS is ', ', which names nothing; expected one or more, ',' between",
        ),
        ({"ALULA_BODY_BYTES": "2 Gb"}, "ALULA_BODY_BYTES '2 Gb': expected a number with one of GiB"),
        ({"ALULA_BODY_BYTES": "0"}, "ALULA_BODY_BYTES is 0; expected at least 1"),
        ({"ALULA_COLOUR": "blue"}, "ALULA_COLOUR is 'blue'; expected one of: red, green"),
        ({"ALULA_CONFIG": "/nowhere.toml"}, r"cannot read the settings in /nowhere\.toml: No such file"),
    ],
)
def test_what_the_environment_says_wrongly_is_refused_by_name(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        resolved(environment=environment)


@pytest.mark.parametrize(("written", "read"), [("'2MiB'", 2**21), ("3000", 3_000), ("'500KB'", 500_000)])
def test_what_is_called_bytes_may_have_a_unit(tmp_path: Path, written: str, read: int) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f"body_bytes = {written}\n")
    assert resolved(file=file)["body_bytes"] == read
    assert resolved(environment={"ALULA_BODY_BYTES": written.strip("'")})["body_bytes"] == read


def test_what_kubernetes_sets_for_a_service_of_our_name_is_not_taken_for_settings() -> None:
    environment = {
        "ALULA_PORT": "tcp://10.0.0.1:80",
        "ALULA_PORT_80_TCP": "tcp://10.0.0.1:80",
        "ALULA_PORT_80_TCP_ADDR": "10.0.0.1",
        "ALULA_SERVICE_HOST": "10.0.0.1",
        "ALULA_SERVICE_PORT": "80",
        "ALULA_CACHE": "/a",
        "PATH": "/bin",
    }
    assert resolved(environment=environment)["port"] == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"a\.toml: no setting 'prot'; did you mean port\?"),
        ("zzzz = 1", r"a\.toml: no setting 'zzzz'; there are folders, colour, port"),
        ("inner = 1", r"a\.toml: no setting 'inner'"),
        ("port = 'x'", r"a\.toml: port is 'x'; expected a whole number"),
        ("port = true", r"a\.toml: port is True; expected a whole number"),
        ("port = 1.5", r"a\.toml: port is 1\.5; expected a whole number"),
        ("port = 12", r"a\.toml: port is 12; expected 0\.\.9"),
        ("shown = 1", r"a\.toml: shown is 1; expected true or false"),
        ("folders = 'a'", r"a\.toml: folders is 'a'; expected a list of texts"),
        ("words = [1]", r"a\.toml: words is \[1\]; expected a list of texts"),
        ("room = 3", r"a\.toml: room is 3; expected a text such as \"2GiB\""),
        ("port = 1 2", r"a\.toml is no TOML: .*line 1"),
    ],
)
def test_what_the_file_says_wrongly_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        resolved(file=file)


def test_what_the_file_says_wrongly_is_refused_where_something_else_holds_too(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("folders = 3\n")
    with pytest.raises(InputError, match=r"a\.toml: folders is 3; expected a list of texts"):
        resolved(flags={"folders": (Path("a"),)}, file=file)


def test_what_is_printed_reads_the_same_again_and_holds_no_secret(tmp_path: Path) -> None:
    flags = {
        "folders": (Path('a "b"\\c'), Path("d\x7fe")),
        "seconds": 0.25,
        "shown": False,
        "room_bytes": 3 * 2**20,
        "words": ("ä", "# no comment"),
        "keys": ("hush",),
    }
    found = resolve(Made, flags, {"ALULA_PORT": "2"})
    text = as_toml(Made, found)
    assert "hush" not in text
    assert "# keys: secret, not printed (command line)\n" in text
    assert "port = 2  # environment: ALULA_PORT\n" in text
    assert tomllib.loads(text)["room"] == "3MiB"
    (tmp_path / "again.toml").write_text(text, encoding="utf-8")
    assert resolved(file=tmp_path / "again.toml") == {**found.values, "keys": ()}
    assert "# room: not set: what fits\n" in as_toml(Made, resolve(Made, {}, {}))


def test_the_defaults_of_the_server_are_within_their_own_limits() -> None:
    found = resolve(ServeOptions, {"bundles": (Path("one"),)}, {})
    assert ServeOptions(**found.values) == ServeOptions(bundles=(Path("one"),))
    assert all(each.told.help.endswith(".") for each in settings_of(ServeOptions))


def test_every_number_has_a_largest_one() -> None:
    numbers = {"whole number", "number", "bytes", "amount"}
    without = [
        each.name for each in settings_of(ServeOptions) if each.kind in numbers and each.told.most is None
    ]
    assert not without
    for given, allowed in (({"threads": 1_000_000}, "0..1024"), ({"grace_s": inf}, "0..86400")):
        with pytest.raises(InputError, match=f"expected {allowed}"):
            ServeOptions(bundles=(Path("a"),), **given)
