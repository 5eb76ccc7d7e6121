"""What a user says of inputs, read and held to a file."""

from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.core.tensor import TensorSpec
from alula.families.stated import agree, parse_inputs

FILE: list[tuple[str, str, tuple[int | str, ...] | None]] = [
    ("x", "float32", ("N", 3, "?", "?")),
    ("size", "int64", ()),
    ("free", "bool", None),
]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=float32[batch,3,48,w]", TensorSpec(name="x", dtype="float32", shape=("batch", 3, 48, "w"))),
        (" x = y=int64[]", TensorSpec(name="x = y", dtype="int64", shape=())),
        (
            "a/b:0=float16[ n , 2 ]:-0.5:1e3",
            TensorSpec(name="a/b:0", dtype="float16", shape=("n", 2), range=(-0.5, 1000.0)),
        ),
        ("ids=int32[_a1]:0:99", TensorSpec(name="ids", dtype="int32", shape=("_a1",), range=(0.0, 99.0))),
    ],
)
def test_an_input_is_read_and_written_the_same(text: str, spec: TensorSpec) -> None:
    assert parse_inputs([text]) == (spec,)
    assert parse_inputs([str(spec)]) == (spec,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "expected NAME=DTYPE[DIM,DIM,...], such as x=float32[batch,3,height,width]"),
        ("x=float32", "expected NAME=DTYPE[DIM,DIM,...]"),
        ("=float32[2]", "expected NAME=DTYPE[DIM,DIM,...]"),
        ("x=float32[2]:0", "expected NAME=DTYPE[DIM,DIM,...]"),
        ("x=float[2]", "dtype 'float' is not one of: float32, float16, float64, bool, int64"),
        ("x=string[2]", "dtype 'string' is not one of"),
        ("x=float32[0]", "axis '0' is neither a size of at least 1 nor a name of letters, digits and _"),
        ("x=float32[-1]", "axis '-1' is neither a size"),
        ("x=float32[a,]", "axis '' is neither a size"),
        ("x=float32[?]", "axis '?' is neither a size"),
        ("x=float32[a=b]", "axis 'a=b' is neither a size"),
        ("x=float32[99999999999]", "axis '99999999999' is neither a size"),
        ("x=float32[2]:1:0", "range 1:0, expected LOW <= HIGH"),
        ("x=float32[2]:a:b", "range a:b, expected LOW <= HIGH"),
        ("x=float32[2]:nan:1", "range nan:1, expected LOW <= HIGH"),
        ("x=float32[2]:0:inf", "range 0:inf, expected LOW <= HIGH"),
        ("x=int64[2]:0:1.5", "range 0:1.5, expected LOW <= HIGH in whole numbers"),
        ("x=bool[2]:0:1", "range 0:1, expected no range, since a bool is drawn from both"),
    ],
)
def test_what_is_no_input_is_refused_with_what_is_expected(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_inputs([text])
    assert str(refused.value).startswith(f"--inputs {text!r}: {said}")


def test_an_input_is_stated_once() -> None:
    with pytest.raises(InputError, match="--inputs: 'x' is stated twice"):
        parse_inputs(["x=float32[2]", "x=float32[3]"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y=float32[2]", "m.onnx has no input 'y'; it has x, size, free"),
        ("x=float16[n,3,h,w]", "in m.onnx 'x' is float32"),
        ("x=float32[n,3,h]", "3 axes, and in m.onnx it has 4: x=float32[N,3,?,?]"),
        ("x=float32[n,4,h,w]", "axis 1 is 3 in m.onnx, and fixed: x=float32[N,3,?,?]"),
        ("x=float32[n,c,h,w]", "axis 1 is 3 in m.onnx, and fixed: x=float32[N,3,?,?]"),
        ("size=int64[1]", "1 axes, and in m.onnx it has 0: size=int64[]"),
    ],
)
def test_what_contradicts_the_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        agree(parse_inputs([text]), FILE, "m.onnx")
    assert str(refused.value) == f"--inputs {text}: {said}"


def test_what_the_file_leaves_open_may_be_anything() -> None:
    agree(parse_inputs(["x=float32[1,3,h,32]", "size=int64[]", "free=bool[a,b,c]"]), FILE, "m.onnx")
