"""The Open Inference Protocol over HTTP: by Triton's client, unmodified, and by bodies made by hand."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import served
import tritonclient.http as triton
from served import Running

from alula.core.errors import InputError
from alula.serve import tensors

MODEL = "tiny/embeddings"
PATH = f"/v2/models/{MODEL}/infer"
IDS = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [2, 4, 3]}
MASK = {"name": "attention_mask", "datatype": "INT64", "shape": [1, 3], "data": [[1, 1, 1]]}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server whose models read images and arrays."""
    root = tmp_path_factory.mktemp("reading")
    tasks = ("image-classification", "text-recognition", "text-detection")
    bundles = [served.make_reader(root / task, task) for task in tasks]
    with served.running([*bundles, served.make_arrays(root / "arrays")], max_client_batch=8) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as found:
        yield found


def given(name: str, values: Any, datatype: str, *, binary: bool = True) -> triton.InferInput:
    array = np.array(values, dtype=triton.triton_to_np_dtype(datatype))
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Running, body: Any, status: int = 400, path: str = PATH) -> str:
    response = server.post(path, body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert response.headers["x-request-id"]
    return str(response.json()["error"])


def test_tritons_client_finds_server_and_models_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("none")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]


def test_metadata_names_tensors_with_open_axes_as_minus_one(client: triton.InferenceServerClient) -> None:
    told = client.get_model_metadata(MODEL, "1")
    assert (told["name"], told["versions"], told["platform"]) == (MODEL, ["1"], "fake")
    assert told["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "attention_mask", "datatype": "INT64", "shape": [-1, -1]},
    ]
    assert told["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 4]}]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compressed", [None, "gzip", "deflate"])
def test_ids_and_texts_give_what_embed_gives(
    client: triton.InferenceServerClient, binary: bool, compressed: str | None
) -> None:
    outputs = [triton.InferRequestedOutput("embedding", binary_data=binary)]
    ids = given("input_ids", [[2, 4, 3, 0], [2, 4, 5, 3]], "INT64", binary=binary)
    mask = given("attention_mask", [[1, 1, 1, 0], [1, 1, 1, 1]], "INT64", binary=not binary)
    expected = [[9.0, 3.0, 1.0, -3.0], [14.0, 4.0, 1.0, -4.0]]
    by_ids = client.infer(
        MODEL, [ids, mask], outputs=outputs, request_id="x", request_compression_algorithm=compressed
    )
    assert by_ids.as_numpy("embedding").tolist() == expected
    assert by_ids.get_response()["id"] == "x"
    texts = given("text", [b"a", b"a b"], "BYTES", binary=binary)
    by_text = client.infer(MODEL, [texts], request_compression_algorithm=compressed)
    assert by_text.as_numpy("embedding").tolist() == expected


@pytest.mark.parametrize("datatype", ["INT32", "UINT32", "INT8"])
def test_ids_of_fewer_bits_are_the_same_ids(server: Running, datatype: str) -> None:
    """huggingface/optimum#223: ids of 32 bits were refused where 64 are declared."""
    asked = {"inputs": [{**IDS, "datatype": datatype}, {**MASK, "datatype": datatype}]}
    [narrow] = ok(server.post(PATH, asked))["outputs"]
    [wide] = ok(server.post(PATH, {"inputs": [IDS, MASK]}))["outputs"]
    assert narrow == wide


def test_what_is_said_of_tokens_comes_as_long_as_the_ids(client: triton.InferenceServerClient) -> None:
    model = "tiny/token-classification"
    ids = [[2, 8, 3, 0, 0], [2, 4, 4, 8, 3]]
    mask = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    found = client.infer(model, [given("input_ids", ids, "INT64"), given("attention_mask", mask, "INT64")])
    logits = found.as_numpy("logits")
    assert logits.shape == (2, 5, 3)
    assert logits[0, :, 1].tolist() == [0, 8, 0, 0, 0]
    assert logits[1, :, 1].tolist() == [0, 0, 0, 8, 0]
    assert not logits[0, 3:].any()
    texts = client.infer(model, [given("text", [b"rome", b"a a rome"], "BYTES")])
    assert np.array_equal(texts.as_numpy("logits"), logits)


def test_two_texts_are_one_row_where_the_task_reads_two(client: triton.InferenceServerClient) -> None:
    model = "tiny/reranking"
    both = [given("text", [b"a", b"a"], "BYTES"), given("text_pair", [b"b", b"rome"], "BYTES")]
    found = client.infer(model, both).as_numpy("logits")
    ids = [given("input_ids", [[2, 4, 3, 5, 3]], "INT64"), given("attention_mask", [[1] * 5], "INT64")]
    assert found[0].tolist() == client.infer(model, ids).as_numpy("logits")[0].tolist()
    assert found[0] != found[1]


def test_images_come_as_pixels_or_as_files(reading: Running) -> None:
    pixels = np.zeros((2, 3, 4, 4), np.float32)
    pixels[1, 0] = 1
    with triton.InferenceServerClient(reading.url.removeprefix("http://")) as client:
        found = client.infer("tiny/image-classification", [given("pixel_values", pixels, "FP32")])
        assert found.as_numpy("logits")[:, :3].tolist() == [[0, 0, 0], [1, 0, 0]]
        wrong = np.zeros((1, 3, 8, 8), np.float32)
        with pytest.raises(triton.InferenceServerException, match=r"expected \[-1, 3, 4, 4\]"):
            client.infer("tiny/image-classification", [given("pixel_values", wrong, "FP32")])
        files = [given("image", [served.picture((255, 0, 0))], "BYTES")]
        red = client.infer("tiny/image-classification", files).as_numpy("logits")
        assert red[0, :3].tolist() == [1, 0, 0]
        page = np.ones((1, 3, 64, 96), np.float32)
        maps = client.infer("tiny/text-detection", [given("x", page, "FP32")]).as_numpy("probabilities")
        assert maps.shape == (1, 1, 64, 96)
        assert (maps == np.float32(0.9)).all()
        with pytest.raises(triton.InferenceServerException, match=r"built for 32\.\.256"):
            client.infer("tiny/text-detection", [given("x", np.ones((1, 3, 64, 300)), "FP32")])
        line = np.full((1, 3, 8, 64), 0.5, np.float32)
        read = client.infer("tiny/text-recognition", [given("x", line, "FP32")])
        assert read.as_numpy("probabilities").shape == (1, 64, 5)


def test_a_model_of_arrays_is_served_as_it_is(reading: Running) -> None:
    with triton.InferenceServerClient(reading.url.removeprefix("http://")) as client:
        rows = np.arange(14, dtype=np.float32).reshape(7, 2)
        found = client.infer("tiny/arrays", [given("x", rows, "FP32"), given("k", [3] * 7, "INT32")])
        assert found.as_numpy("sum").tolist() == (rows + 3).tolist()
        # Seven rows of an engine that takes four.
        assert found.as_numpy("rows")[:, 0].tolist() == [4, 4, 4, 4, 3, 3, 3]
        for count, message in (
            (0, "no rows; expected at least one"),
            (9, "9 rows in one request; the limit is 8"),
        ):
            wrong = [given("x", np.zeros((count, 2)), "FP32"), given("k", [1] * count, "INT32")]
            with pytest.raises(triton.InferenceServerException, match=message):
                client.infer("tiny/arrays", wrong)
        with pytest.raises(triton.InferenceServerException, match=r"axis 'wide' is 9; built for 1\.\.8"):
            client.infer("tiny/arrays", [given("x", np.zeros((1, 9)), "FP32"), given("k", [1], "INT32")])
        with pytest.raises(triton.InferenceServerException, match=r"input 'k' holds 11; the model takes"):
            client.infer("tiny/arrays", [given("x", np.zeros((1, 2)), "FP32"), given("k", [11], "INT32")])


def test_requests_run_together_with_those_of_other_routes(server: Running) -> None:
    before = served.metric(server, "alula_batch_size_sum", model=MODEL)
    ok(server.post(PATH, {"inputs": [{**TEXT, "shape": [3], "data": ["a", "b", "a b"]}]}))
    assert served.metric(server, "alula_batch_size_sum", model=MODEL) == before + 3
    assert 'route="/v2/models/{model:path}/infer",status="200"' in server.client.get("/metrics").text


def test_outputs_are_told_as_json_unless_asked_otherwise(server: Running) -> None:
    answer = ok(server.post(PATH, {"id": "7", "inputs": [IDS, MASK]}))
    assert answer == {
        "model_name": MODEL,
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "embedding", "datatype": "FP32", "shape": [1, 4], "data": [9.0, 3.0, 1.0, -3.0]}
        ],
    }
    wish = {"outputs": [{"name": "embedding", "parameters": {"binary_data": True}}]}
    for asked in (wish, {"parameters": {"binary_data_output": True}}):
        response = server.post(PATH, {"inputs": [TEXT], **asked})
        at = int(response.headers["inference-header-content-length"])
        (output,) = json.loads(response.content[:at])["outputs"]
        assert output["parameters"] == {"binary_data_size": 16}
        assert np.frombuffer(response.content[at:], "<f4").tolist() == [9.0, 3.0, 1.0, -3.0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no inputs are given"),
        ([{**IDS, "name": "x"}, MASK], "no input 'x'; tiny/embeddings takes text, input_ids, attention_mask"),
        (
            [IDS],
            "input 'attention_mask' is missing; expected input_ids, attention_mask, or 'text' in their place",
        ),
        ([IDS, IDS], "input 'input_ids' is given twice"),
        ([IDS, MASK, TEXT], "inputs 'text' and 'input_ids' are both given; expected either"),
        ([{**IDS, "datatype": "FP32"}, MASK], "input 'input_ids' is FP32; expected INT64"),
        ([{**IDS, "datatype": "UINT64"}, MASK], "input 'input_ids' is UINT64; expected INT64"),
        ([{**IDS, "datatype": "BF16"}, MASK], "has datatype 'BF16'; expected one of: BOOL"),
        ([{**IDS, "shape": [3]}, MASK], "input 'input_ids' has shape [3]; expected [-1, -1]"),
        ([{**IDS, "shape": [1, -1]}, MASK], "has shape [1, -1]; expected sizes of 0.."),
        ([{**IDS, "shape": [-1, 3]}, MASK], "has shape [-1, 3]; expected sizes of 0.."),
        ([{**IDS, "shape": [1, True]}, MASK], "inputs[0].shape is not a list of whole numbers"),
        ([{**IDS, "shape": [2, 3]}, MASK], "input 'input_ids' has 3 elements; shape [2, 3] has 6"),
        ([{**IDS, "shape": [0, 3], "data": []}, {**MASK, "shape": [0, 3], "data": []}], "have no rows"),
        ([{**IDS, "shape": [1, 0], "data": []}, {**MASK, "shape": [1, 0], "data": []}], "at least one token"),
        ([{**IDS, "data": [2, 4.5, 3]}, MASK], "the data of input 'input_ids' are not all INT64"),
        ([{**IDS, "data": [2, True, 3]}, MASK], "the data of input 'input_ids' are not all INT64"),
        ([{**IDS, "data": [2, 1 << 63, 3]}, MASK], "are not all INT64, which holds"),
        ([{**IDS, "data": [2, "a" * 9, 3]}, MASK], "are not all INT64"),
        ([{**IDS, "data": [2, 99, 3]}, MASK], "token id 99; the model knows 0..17"),
        ([{**IDS, "data": 7}, MASK], "the data of input 'input_ids' is no list"),
        ([IDS, {**MASK, "data": [0, 1, 1]}], "row 0 of input 'attention_mask' is not ones followed by zeros"),
        ([IDS, {**MASK, "data": [1, 2, 0]}], "row 0 of input 'attention_mask' is not ones followed by zeros"),
        ([IDS, {**MASK, "shape": [3, 1]}], "have {'input_ids': 1, 'attention_mask': 3} rows"),
        ([{**TEXT, "data": ["\ud83d"]}], "element 0 of input 'text' is not UTF-8: byte 0 is 0xed"),
        ([{**TEXT, "data": [7]}], "expected BYTES as strings"),
        ([{**TEXT, "shape": [0], "data": []}], "the list of inputs is empty"),
        ([{**TEXT, "parameters": {"shared_memory_region": "x"}}], "parameters.shared_memory_region"),
        ([{**TEXT, "parameters": {"binary_data_size": 5}}], "unknown field inputs[0].data"),
        (["text"], "inputs and outputs are lists of objects"),
    ],
)
def test_what_is_no_input_is_refused_by_name(server: Running, inputs: list[Any], message: str) -> None:
    """triton-inference-server/server#5972: sizes of nought or below ended the server, or were a raw error."""
    response = server.client.post(PATH, content=json.dumps({"inputs": inputs}))
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert server.get("/v2/health/ready") == {"ready": True}


def test_what_else_cannot_be_done_is_refused_by_name(server: Running) -> None:
    body = {"inputs": [TEXT]}
    assert "no output 'x'; tiny/embeddings gives embedding" in refused(
        server, {**body, "outputs": [{"name": "x"}]}
    )
    assert "twice" in refused(server, {**body, "outputs": [{"name": "embedding"}] * 2})
    classes = {"name": "embedding", "parameters": {"classification": 3}}
    assert "outputs[0].parameters.classification" in refused(server, {**body, "outputs": [classes]})
    assert "parameters.sequence_id" in refused(server, {**body, "parameters": {"sequence_id": 1}})
    assert "inputs is missing" in refused(server, {})
    long = {**IDS, "shape": [1, 49], "data": [4] * 49}
    assert "a row has 49 tokens; the model takes 48" in refused(
        server, {"inputs": [long, {**MASK, "shape": [1, 49], "data": [1] * 49}]}
    )
    many = {**TEXT, "shape": [9], "data": ["a"] * 9}
    assert "9 inputs in one request; the limit is 8" in refused(server, {"inputs": [many]}, 413)
    none = "/v2/models/none/infer"
    assert "model 'none' is not served" in refused(server, body, 404, none)
    assert "has no version '2'" in refused(server, body, 404, f"/v2/models/{MODEL}/versions/2/infer")
    assert "writes text" in refused(server, body, 400, "/v2/models/tiny/text-generation/infer")
    ok(server.post(f"/v2/models/{MODEL}/versions/1/infer", body))
    got = server.client.get(PATH)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    for path in ("/v2/nothing", "/v2/models/none", "/v2/models/none/ready"):
        missing = server.client.get(path)
        assert (missing.status_code, set(missing.json())) == (404, {"error"})
    assert "the engine gives NaN for 'embedding'" in refused(
        server, {"inputs": [{**TEXT, "data": ["nan"]}]}, 500
    )


def posted(server: Running, body: bytes, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.client.post(PATH, content=body, headers=names)


@pytest.mark.parametrize(
    ("size", "tail", "message"),
    [
        (5, b"\1\0\0\0a", ""),
        (6, b"\1\0\0\0a", "says 6 bytes; 5 follow the JSON"),
        (4, b"\1\0\0\0a", "ends within element 0, which has 1 bytes"),
        (5, b"\1\0\0\0ab", "1 bytes follow those of the last binary input"),
        (3, b"\1\0\0", "ends within the length of element 0"),
        (-1, b"", "says -1 bytes"),
        (10, b"\1\0\0\0a" * 2, "input 'text' has 2 elements; shape [1] has 1"),
    ],
)
def test_bytes_behind_the_json_are_those_of_the_inputs(
    server: Running, size: int, tail: bytes, message: str
) -> None:
    one = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [one]}).encode()
    response = posted(server, head + tail, inference_header_content_length=str(len(head)))
    assert response.status_code == (400 if message else 200), response.text
    assert message in response.text


@pytest.mark.parametrize("length", ["x", "-1", "99999", "1" * 40, "²"])
def test_a_header_length_that_is_not_within_the_body_is_refused(server: Running, length: str) -> None:
    response = server.client.post(
        PATH, content=b"{}", headers=[(b"inference-header-content-length", length.encode())]
    )
    assert response.status_code == 400
    assert "expected 0..2" in response.json()["error"]


def test_a_body_is_bounded_before_and_after_it_is_inflated(server: Running) -> None:
    body = json.dumps({"inputs": [TEXT]}).encode()
    ok(posted(server, gzip.compress(body), content_encoding="gzip"))
    ok(posted(server, zlib.compress(body), content_encoding="Deflate"))
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 100_000
    response = posted(server, bomb, content_encoding="gzip")
    assert response.status_code == 413
    assert response.json() == {"error": "the body is larger than 2000000 bytes once it is inflated"}
    assert posted(server, b" " * 2_000_001).status_code == 413
    for wrong in (b"junk", gzip.compress(body)[:-4], gzip.compress(body) + b"x"):
        assert posted(server, wrong, content_encoding="gzip").status_code == 400
    assert posted(server, body, content_encoding="br").status_code == 415


def test_ones_and_zeros_alone_are_booleans() -> None:
    assert tensors.from_raw("x", "BOOL", [2], b"\0\1").values.tolist() == [False, True]
    with pytest.raises(InputError, match="bytes other than 0 and 1"):
        tensors.from_raw("x", "BOOL", [1], b"\2")
    with pytest.raises(InputError, match="has 3 bytes; INT32 of shape"):
        tensors.from_raw("x", "INT32", [1], b"abc")
    with pytest.raises(InputError, match="too large for FP16"):
        tensors.from_values("x", "FP16", [1], [1e6])


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT64", "FP16", "FP64"])
def test_bytes_of_a_tensor_are_read_back(datatype: str) -> None:
    values = np.array([[0, 1], [1, 0]]).astype(tensors.DATATYPES[datatype])
    raw = tensors.to_raw(tensors.Tensor(name="x", values=values))
    back = tensors.from_raw("x", datatype, [2, 2], raw)
    assert back.datatype == datatype
    assert np.array_equal(back.values, values)
    assert len(raw) == 4 * struct.calcsize({"BOOL": "?", "INT8": "b", "FP16": "e"}.get(datatype, "d"))
