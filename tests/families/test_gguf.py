"""GGUF files: what they say, what their blocks unpack to, and what is refused."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import ARRAY, TEXT, U32, U64, Packed, floats, gguf, written

from alula.core.errors import InputError
from alula.families.ggml import TYPES, Bytes, unpack
from alula.families.gguf import read_gguf

Floats = NDArray[np.float32]

NUMBER = {kind.name: number for number, kind in TYPES.items()}
# Where the fp16 numbers of a block lie.
SCALES = {
    **{"F16": (0,), "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2)},
    **{"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
}


def block(name: str, halves: tuple[float, ...], given: Mapping[int, int]) -> Bytes:
    """One block with these fp16 numbers and bytes, and zeros elsewhere."""
    raw = np.zeros((1, TYPES[NUMBER[name]].size), np.uint8)
    for at, half in zip(SCALES[name], halves, strict=True):
        raw[0, at : at + 2] = np.frombuffer(np.float16(half).tobytes(), np.uint8)
    for at, byte in given.items():
        raw[0, at] = byte
    return raw


# Scales 3 and 42, minima 7 and 21: the first group's in six bits, the fifth's four bits and the two above them.
SIX_BITS = {4: 0b10_000011, 8: 0b01_000111, 12: 0x5A}


@pytest.mark.parametrize(
    ("name", "halves", "given", "expected"),
    [
        ("F16", (1.5,), {}, {0: 1.5}),
        ("Q8_0", (0.5,), {2: 0x80, 3: 127, 33: 0xFF}, {0: -64.0, 1: 63.5, 2: 0.0, 31: -0.5}),
        ("Q4_0", (2.0,), {2: 0xF1, 17: 0x3A}, {0: -14.0, 16: 14.0, 15: 4.0, 31: -10.0, 1: -16.0}),
        ("Q4_1", (2.0, -3.0), {4: 0xF1, 19: 0x3A}, {0: -1.0, 16: 27.0, 15: 17.0, 31: 3.0, 1: -3.0}),
        (
            "Q5_0",
            (1.0,),
            {2: 1, 5: 0x80, 6: 0xF1, 21: 0x2E},
            {0: 1.0, 16: -1.0, 15: -2.0, 31: 2.0, 1: -16.0},
        ),
        ("Q5_1", (2.0, 5.0), {4: 1, 7: 0x80, 8: 0xF1, 23: 0x2E}, {0: 39.0, 16: 35.0, 15: 33.0, 31: 41.0}),
        (
            "Q4_K",
            (1.0, 1.0),
            {**SIX_BITS, 16: 0xB4, 80: 0x29},
            {0: 5.0, 1: -7.0, 32: 0.0, 128: 357.0, 129: -21.0},
        ),
        ("Q5_K", (1.0, 1.0), {**SIX_BITS, 16: 0b10001, 48: 0xB4, 112: 0x29}, {0: 53.0, 1: -7.0, 128: 1029.0}),
        (
            "Q6_K",
            (0.5,),
            {0: 0x0F, 128: 0b11, 192: 2, 127: 0x70, 191: 0b01_000000, 207: 0xFD},
            {0: 31.0, 1: -32.0, 255: 13.5, 254: 48.0, 128: 0.0},
        ),
    ],
)
def test_a_block_unpacks_to_what_the_format_says(
    name: str, halves: tuple[float, ...], given: Mapping[int, int], expected: Mapping[int, float]
) -> None:
    values = unpack(TYPES[NUMBER[name]], block(name, halves, given))[0]
    assert {at: float(values[at]) for at in expected} == dict(expected)


def random_blocks(name: str, count: int) -> Bytes:
    """Any bits, but for the fp16 numbers, which are finite."""
    rng = np.random.default_rng(0)
    if name == "F32":
        return rng.standard_normal((count, 1), np.float32).view(np.uint8)
    raw = rng.integers(0, 256, (count, TYPES[NUMBER[name]].size), np.uint8)
    for at in SCALES.get(name, ()):
        raw[:, at : at + 2] = rng.standard_normal((count, 1)).astype(np.float16).view(np.uint8)
    if name == "BF16":
        raw[:, 1] &= 0x3F
    return raw


@pytest.mark.parametrize("name", NUMBER)
def test_blocks_of_any_bits_unpack_as_the_gguf_package_does(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    constants = pytest.importorskip("gguf.constants")
    raw = random_blocks(name, 512)
    expected = quants.dequantize(raw.reshape(1, -1), constants.GGMLQuantizationType[name])
    given = unpack(TYPES[NUMBER[name]], raw)
    assert given.dtype == np.float32
    assert np.array_equal(given.reshape(expected.shape), expected)


def test_unpacking_many_blocks_needs_little_beside_what_it_gives() -> None:
    raw = np.tile(random_blocks("Q4_K", 512), (256, 1))
    tracemalloc.start()
    values = unpack(TYPES[NUMBER["Q4_K"]], raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values.nbytes == 128 << 20
    assert peak < values.nbytes + (100 << 20)


def a_file(**changes: Any) -> bytes:
    settings = {
        "general.architecture": "llama",
        "general.name": "größer",
        "a.flag": True,
        "a.number": 1.5,
        "words": ["a", "bc", ""],
        "kinds": [3, 1],
    }
    tensors = {
        "one": floats(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "two": Packed(shape=(2, 32), kind=NUMBER["Q8_0"], data=random_blocks("Q8_0", 2).tobytes()),
    }
    return gguf({**settings, **changes}, tensors)


@pytest.mark.parametrize("version", [2, 3])
def test_a_file_says_its_settings_and_where_its_tensors_lie(tmp_path: Path, version: int) -> None:
    data = bytearray(a_file())
    data[4] = version
    file = read_gguf(written(tmp_path / "m.gguf", bytes(data)))
    assert file.metadata["general.name"] == "größer"
    assert file.metadata["a.flag"] is True
    assert file.metadata["a.number"] == 1.5
    assert file.metadata["words"] == ("a", "bc", "")
    assert np.array_equal(np.asarray(file.metadata["kinds"]), [3, 1])
    assert file.tensors["one"].read().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensors["one"].read_transposed().tolist() == [[0, 3], [1, 4], [2, 5]]
    expected = unpack(TYPES[NUMBER["Q8_0"]], random_blocks("Q8_0", 2))
    assert np.array_equal(file.tensors["two"].read(), expected)


def test_a_file_of_the_gguf_package_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_block_count(3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("x", np.arange(8, dtype=np.float16).reshape(2, 4))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    file = read_gguf(tmp_path / "m.gguf")
    assert file.metadata["general.architecture"] == "qwen2"
    assert file.metadata["qwen2.block_count"] == 3
    assert file.metadata["tokenizer.ggml.tokens"] == ("a", "b")
    assert file.tensors["x"].read().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = a_file()
    read_gguf(written(tmp_path / "m.gguf", whole))
    for size in range(len(whole)):
        with pytest.raises(
            InputError, match=r"m.gguf is (cut short|not a GGUF file|a GGUF file of version 0)"
        ):
            read_gguf(written(tmp_path / "m.gguf", whole[:size]))


def test_a_file_of_any_bytes_gives_an_error_of_ours_or_none(tmp_path: Path) -> None:
    rng, whole = np.random.default_rng(0), a_file()
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(0, 256)
        try:
            read_gguf(written(tmp_path / "m.gguf", bytes(data)))
        except InputError:
            refused += 1
    assert refused > 50


def test_numbers_in_a_file_ask_for_no_memory_before_their_bytes_are_there(tmp_path: Path) -> None:
    many = 1 << 21
    for value in (
        struct.pack("<IIQ", ARRAY, U64, many),
        struct.pack("<IIQ", ARRAY, TEXT, many),
        struct.pack("<IIQ", ARRAY, U64, 1 << 60),
        struct.pack("<IQ", TEXT, 1 << 60),
    ):
        path = written(tmp_path / "m.gguf", a_file(last=value))
        tracemalloc.start()
        with pytest.raises(InputError, match=r"cut short|malformed"):
            read_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20


ONE = floats(np.zeros((2, 32), np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGML" + a_file()[4:], r"m.gguf is not a GGUF file: it begins with b'GGML', expected b'GGUF'"),
        (gguf({}, {}, version=1), "is a GGUF file of version 1, expected version 2 or 3, little-endian"),
        (
            b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
            "is a GGUF file in big-endian order, expected version 2 or 3",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0),
            "malformed: 1099511627776 tensors, expected at most 65536",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40),
            "malformed: 1099511627776 settings, expected at most 65536",
        ),
        (gguf({"k": struct.pack("<I", 13)}, {}), "malformed: k is of type 13, which GGUF does not have here"),
        (
            gguf({"k": struct.pack("<IIQ", ARRAY, ARRAY, 1)}, {}),
            "malformed: k is of type 9, which GGUF does not have here",
        ),
        (
            gguf({"k": struct.pack("<IIQ", ARRAY, U32, 1 << 23)}, {}),
            "malformed: 8388608 items in arrays up to k, expected at most 4194304",
        ),
        (gguf({"k": struct.pack("<IQ", TEXT, 1 << 25)}, {}), "malformed: a text of 33554432 bytes at byte"),
        (
            gguf({"k": struct.pack("<IQ", TEXT, 1) + b"\xff"}, {}),
            "malformed: a text before byte 46 is no UTF-8",
        ),
        (gguf({"split.count": 4}, {}), "is one of 4 files of a model, expected one; join them with"),
        (gguf({"general.alignment": 12}, {}), "general.alignment is 12, expected a power of two"),
        (gguf({"general.alignment": "x"}, {}), "general.alignment is x, expected a power of two"),
        (
            gguf(
                {"general.alignment": 64},
                {"a": ONE, "b": ONE, "c": Packed(shape=(8,), kind=0, data=bytes(32)), "d": ONE},
            ),
            "malformed: d lies at 544, not a multiple of 64",
        ),
        (
            gguf({}, {"a": Packed(shape=(2, 48), kind=8, data=b"")}),
            r"malformed: a is \[2, 48\], expected rows of whole blocks of 32",
        ),
        (
            gguf({}, {"a": Packed(shape=(0, 32), kind=8, data=b"")}),
            r"malformed: a is \[0, 32\], expected rows",
        ),
        (
            gguf({}, {"a": Packed(shape=(1,) * 5, kind=0, data=b"")}),
            "malformed: a has 5 axes, expected 1 to 4",
        ),
        (
            gguf({}, {"a": Packed(shape=(1, 256), kind=10, data=b"")}),
            r"m.gguf: a is of type 10 \(Q2_K\), expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K",
        ),
        (
            gguf({}, {"a": Packed(shape=(1, 256), kind=99, data=b"")}),
            r"a is of type 99 \(not known\), expected",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_gguf(written(tmp_path / "m.gguf", data))


def test_what_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = gguf({"ka": 1, "kb": 2}, {"ta": ONE, "tb": ONE})
    with pytest.raises(InputError, match="malformed: ka is set twice"):
        read_gguf(written(tmp_path / "m.gguf", data.replace(b"kb", b"ka")))
    with pytest.raises(InputError, match="malformed: it has two tensors ta"):
        read_gguf(written(tmp_path / "m.gguf", data.replace(b"tb", b"ta")))
