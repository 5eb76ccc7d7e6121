from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from alula.core.errors import CompileError, EngineError, InputError, RunError, ShapeError
from alula.serve import wire
from alula.serve.named import BundleReplaced
from alula.serve.wire import Kind, Message


def through(message: Message) -> Message:
    sent = b"".join(wire.pack(message))
    envelope = wire.unpack_header(sent[: wire.HEADER.size])
    body = bytearray(sent[wire.HEADER.size :])
    assert len(body) == envelope.meta_bytes + envelope.payload_bytes
    return wire.unpack(envelope, body)


@given(
    array=st.sampled_from(sorted(wire.DTYPES)).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    )
)
def test_arrays_arrive_as_they_were_sent(array: np.ndarray) -> None:
    sent = Message(kind=Kind.RUN, number=7, meta={"model": 1}, arrays={"a": array, "b": array.T})
    got = through(sent)
    assert (got.kind, got.number, got.meta) == (Kind.RUN, 7, {"model": 1})
    for name in ("a", "b"):
        np.testing.assert_array_equal(got.arrays[name], sent.arrays[name])
        assert got.arrays[name].dtype == array.dtype


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("a"), InputError),
        (ShapeError("a"), InputError),
        (RunError("a"), RunError),
        (CompileError("a"), EngineError),
        (EngineError("a"), EngineError),
        (BundleReplaced("a"), BundleReplaced),
    ],
)
def test_an_error_keeps_who_can_act_on_it(error: Exception, kind: type[Exception]) -> None:
    got = wire.error_of(through(wire.failure(3, error)))
    assert (type(got), str(got)) == (kind, "a")


def test_an_unforeseen_error_names_its_type() -> None:
    got = wire.error_of(through(wire.failure(3, KeyError("x"))))
    assert (type(got), str(got)) == (EngineError, "KeyError: 'x'")


@pytest.mark.parametrize(
    "header",
    [
        b"HTTP" + bytes(24),
        wire.HEADER.pack(b"ALUL", 2, 1, 0, 0, 0, 0),
        wire.HEADER.pack(b"ALUL", 1, max(wire.Kind) + 1, 0, 0, 0, 0),
    ],
)
def test_what_is_no_message_of_this_version_is_refused(header: bytes) -> None:
    with pytest.raises(wire.WireError, match="not a message of version 1"):
        wire.unpack_header(header)


def test_sizes_are_bounded_before_anything_is_allocated() -> None:
    with pytest.raises(wire.WireError, match="at most"):
        wire.unpack_header(wire.HEADER.pack(b"ALUL", 1, 1, 0, 0, 0, 1 << 40))


def test_no_dtype_runs_code_on_arrival() -> None:
    meta = b'{"arrays": [["a", "object", [1]]]}'
    envelope = wire.Envelope(kind=Kind.RUN, number=0, meta_bytes=len(meta), payload_bytes=8)
    with pytest.raises(wire.WireError, match="array 'a' is object"):
        wire.unpack(envelope, bytearray(meta + bytes(8)))


def test_a_message_is_exactly_as_long_as_its_arrays() -> None:
    meta = b'{"arrays": [["a", "int64", [1]]]}'
    envelope = wire.Envelope(kind=Kind.RUN, number=0, meta_bytes=len(meta), payload_bytes=16)
    with pytest.raises(wire.WireError, match="whose arrays end at"):
        wire.unpack(envelope, bytearray(meta + bytes(16)))
