"""Images over HTTP: forms, bare bodies and base64. The model tells their mean colours, or a letter for every column."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from PIL import Image
from served import Running, metric

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
CLASSES, LINES = "tiny/image-classification", "tiny/text-recognition"


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory, bundles: dict[str, Path]) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("readers")
    tasks = ("image-classification", "image-embeddings", "text-recognition")
    readers = [served.make_reader(root / task, task) for task in tasks]
    options: dict[str, Any] = {
        "max_body_bytes": 10_000,
        "max_image_bytes": 200_000,
        "max_image_pixels": 100_000,
    }
    with served.running([*readers, bundles["embeddings"]], max_client_batch=8, **options) as running:
        yield running


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def plain(colour: tuple[int, int, int], width: int = 8, height: int = 8) -> bytes:
    return encoded(Image.new("RGB", (width, height), colour))


def line(letters: str, width: int = 8) -> bytes:
    """Columns as bright as the letters are far in the alphabet; a space is dark."""
    picture = Image.new("RGB", (width * len(letters), 8))
    for at, letter in enumerate(letters):
        level = 0 if letter == " " else (ord(letter) - ord("a") + 1) * 255 // 4
        picture.paste((level, level, level), (width * at, 0, width * (at + 1), 8))
    return encoded(picture)


def text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def ok(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def best(answer: Sequence[Any]) -> str:
    """The colour; "rows" says how many images were run together."""
    return next(str(one["label"]) for one in answer if one["label"] != "rows")


def said(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["error_type"] == "validation"
    return str(answer["error"])


def test_an_image_is_taken_in_every_way_and_answered_alike(reading: Running) -> None:
    image, client = plain(GREEN), reading.client
    ways = [
        client.post("/predict", files={"image": ("a.png", image, "image/png")}),
        client.post("/predict", files={"inputs": ("a.png", image)}, data={"model": CLASSES}),
        client.post("/predict", content=image, headers={"content-type": "image/png"}),
        client.post("/predict", content=image, headers={"content-type": "application/octet-stream"}),
        client.post(
            "/predict?model=image-classification", content=image, headers={"content-type": "image/jpeg"}
        ),
        reading.post("/predict", {"inputs": text(image), "model": CLASSES}),
        reading.post("/predict", {"inputs": "data:image/png;base64," + text(image)}),
        reading.post("/predict", {"inputs": base64.encodebytes(image).decode()}),
    ]
    answers = [ok(way) for way in ways]
    assert best(answers[0]) == "green"
    assert {one["label"]: one["score"] for one in answers[0]} == {"red": 0, "green": 1, "blue": 0, "rows": 1}
    assert answers == [answers[0]] * len(ways)


def test_several_images_are_a_list_in_their_order(reading: Running) -> None:
    images = [plain(colour) for colour in (RED, BLUE, GREEN, RED, BLUE, GREEN)]
    files = [("images", (f"{at}.png", image, "image/png")) for at, image in enumerate(images)]
    colours = ["red", "blue", "green"] * 2
    assert list(map(best, ok(reading.client.post("/predict", files=files)))) == colours
    answer = ok(reading.post("/predict", {"inputs": list(map(text, images))}))
    assert list(map(best, answer)) == colours
    assert len(ok(reading.post("/predict", {"inputs": [text(images[0])]}))) == 1


def test_the_best_classes_are_as_many_as_asked(reading: Running) -> None:
    image = plain(BLUE)
    assert len(ok(reading.post("/predict", {"inputs": text(image), "top_k": 2}))) == 2
    form = reading.client.post("/predict", files={"image": ("a.png", image)}, data={"top_k": "1"})
    assert len(ok(form)) == 1
    bare = reading.client.post("/predict?top_k=3", content=image, headers={"content-type": "image/png"})
    assert len(ok(bare)) == 3


def test_images_that_arrive_together_run_together(reading: Running) -> None:
    before = metric(reading, "alula_batch_size_count", model=CLASSES)
    with ThreadPoolExecutor(8) as pool:
        images = [plain(colour, 200, 200) for colour in (RED, GREEN, BLUE) * 8]
        found = list(
            pool.map(lambda image: ok(reading.post("/predict", {"inputs": [text(image)] * 4})), images)
        )
    assert [best(one) for answer in found for one in answer] == [
        colour for colour in ("red", "green", "blue") * 8 for _ in range(4)
    ]
    assert metric(reading, "alula_batch_size_count", model=CLASSES) - before <= 24
    assert metric(reading, "alula_tokens_total", model=CLASSES) == 0


def test_lines_are_read_the_same_alone_and_in_a_batch(reading: Running) -> None:
    letters = ["a b", "ab cd ba", "d", "abcd" * 4, "c c", "b"]
    alone = [ok(reading.post("/predict", {"inputs": text(line(one)), "model": LINES})) for one in letters]
    assert [one["text"] for one in alone] == ["ab", "abcdba", "d", "abcd" * 4, "cc", "b"]
    assert len({one["score"] for one in alone}) > 2  # of several widths
    together = ok(reading.post("/predict", {"inputs": [text(line(one)) for one in letters], "model": LINES}))
    assert together == alone


def test_a_vector_is_made_of_every_image(reading: Running) -> None:
    body = {"inputs": [text(plain(RED)), text(plain(BLUE))], "model": "tiny/image-embeddings"}
    assert ok(reading.post("/predict", body)) == [
        {"embedding": [1.0, 0.0, 0.0, 2.0]},
        {"embedding": [0.0, 0.0, 1.0, 2.0]},
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": "@@@"}, "inputs is not base64"),
        ({"inputs": ""}, "inputs is empty; expected an image"),
        ({"inputs": []}, "no image is given"),
        (
            {"inputs": text(b"no image")},
            "inputs cannot be decoded: it is none of BMP, GIF, JPEG, PNG, TIFF, WEBP",
        ),
        ({"inputs": [text(plain(RED)), text(plain(RED)[:50])]}, "inputs[1] cannot be decoded"),
        ({"inputs": ["data:image/png,abc"]}, "inputs[0] is a data URL without base64"),
        ({"inputs": "https://example.com/a.png"}, "inputs is a URL, and this server fetches nothing"),
        ({"inputs": 3}, "inputs is not an image; expected base64, a data URL or an upload"),
        ({"inputs": text(plain(RED)), "top_k": 0}, "top_k is 0; expected at least 1"),
        ({"inputs": text(plain(RED)), "truncate": True}, "unknown field truncate"),
        ({"inputs": text(line("a")), "model": LINES, "top_k": 3}, "unknown field top_k"),
        ({"model": CLASSES}, "inputs is missing"),
        ({"inputs": text(plain(RED, 400, 400))}, "inputs has 400 x 400 pixels; expected at most 100000"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_by_name(reading: Running, body: Any, says: str) -> None:
    assert says in said(reading.post("/predict", body))


def test_a_form_that_cannot_be_read_is_refused_by_name(reading: Running) -> None:
    def sent(body: bytes, kind: str = "multipart/form-data; boundary=xx") -> httpx.Response:
        return reading.client.post("/predict", content=body, headers={"content-type": kind})

    file = b'Content-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    good = b"--xx\r\n" + file + plain(RED) + b"\r\n--xx--\r\n"
    assert best(ok(sent(good))) == "red"
    assert best(ok(sent(b"preamble\r\n" + good + b"epilogue"))) == "red"
    assert "no boundary" in said(sent(good, "multipart/form-data"))
    assert "does not end with its boundary" in said(sent(good[:-8]))
    assert "does not end with its boundary" in said(sent(b""))
    assert "has no headers" in said(sent(b"--xx\r\nabc\r\n--xx--"))
    assert "has no name" in said(sent(b"--xx\r\nContent-Type: image/png\r\n\r\nabc\r\n--xx--"))
    assert "a.png is empty" in said(sent(b"--xx\r\n" + file + b"\r\n--xx--"))
    assert "a.png cannot be decoded" in said(sent(b"--xx\r\n" + file + b"abc\r\n--xx--"))
    named = b'Content-Disposition: form-data; name="top_k"\r\n\r\n'
    assert "top_k is 'x', expected a whole number" in said(sent(b"--xx\r\n" + named + b"x\r\n--xx--"))
    twice = b"--xx\r\n" + named + b"1\r\n--xx\r\n" + named + b"2\r\n--xx--"
    assert "top_k is in the form twice" in said(sent(twice))
    assert "top_k is not UTF-8" in said(sent(b"--xx\r\n" + named + b"\xff\r\n--xx--"))
    assert "inputs is a text in a form" in said(
        sent(b"--xx\r\n" + named.replace(b"top_k", b"inputs") + b"1\r\n--xx--")
    )
    assert "no image is given" in said(sent(b"--xx\r\n" + named + b"1\r\n--xx--"))
    assert "the body is empty" in said(sent(b"", "image/png"))


def test_images_may_be_larger_than_other_bodies_and_not_any_size(reading: Running) -> None:
    large = encoded(Image.effect_noise((150, 150), 90).convert("RGB"))
    assert 10_000 < len(large) < 150_000
    ok(reading.post("/predict", {"inputs": text(large)}))
    assert reading.post("/v1/embeddings", {"input": "a" * 20_000}).status_code == 413
    assert "larger than 200000 bytes" in said(reading.post("/predict", {"inputs": "a" * 200_001}), 413)
    assert "9 images in one request; the limit is 8" in said(
        reading.post("/predict", {"inputs": [text(plain(RED))] * 9}), 413
    )


def test_a_model_of_texts_takes_no_images(reading: Running, server: Running) -> None:
    image = {"image": ("a.png", plain(RED))}
    refused = reading.client.post("/predict", files=image, data={"model": "tiny/embeddings"})
    assert "does embeddings, not image-classification or image-embeddings or text-detection or " in said(
        refused
    )
    answer = server.client.post("/predict", files=image)
    assert (
        "no model here does image-classification or image-embeddings or text-detection or text-recognition"
        in said(answer, 404)
    )


def test_information_and_limits_of_a_model_of_images(reading: Running) -> None:
    first = reading.get("/info")["models"][0]
    assert (first["task"], first["max_batch_rows"]) == ("image-classification", 4)
