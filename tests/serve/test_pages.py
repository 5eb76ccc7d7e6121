"""Pages over HTTP to a model that finds text: bright places of the page, in the pixels of the page that was sent."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import served
from PIL import Image
from scripted_engine import bright
from served import Running, metric

from alula.batching import Ran
from alula.bundles import Bundle
from alula.codecs import DetectionCodec, each_image, images_codec
from alula.core.engine import Plan
from alula.core.errors import Overloaded, ShapeError
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.serve.decoding import DECODERS
from alula.serve.options import ServeOptions
from alula.serve.outcome import Outcome
from alula.serve.pages import Pages
from alula.serve.uploads import Upload

PAGES = "tiny/text-detection"
BLUE = (0, 0, 255)

Corners: TypeAlias = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served.make_reader(tmp_path_factory.mktemp("pages") / "text-detection", "text-detection")


@pytest.fixture(scope="module")
def finding(bundle: Path) -> Iterator[Running]:
    limits: dict[str, Any] = {"max_client_batch": 8, "max_image_pixels": 100_000, "max_body_bytes": 10_000}
    with served.running([bundle], **limits) as running:
        yield running


def page(*lines: Corners, size: tuple[int, int] = (128, 96), dark: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    picture = Image.new("RGB", size, dark)
    for line in lines:
        picture.paste((255, 255, 255), line)
    return encoded(picture)


def encoded(picture: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def text(image: bytes) -> str:
    return base64.b64encode(image).decode()


def asked(running: Running, inputs: Any, status: int = 200, **more: Any) -> Any:
    response = running.post("/predict", {"inputs": inputs, "model": PAGES, **more})
    assert response.status_code == status, response.text
    return response.json()


def by_hand(bundle: Path, image: bytes) -> list[dict[str, Any]]:
    """What `alula run --image` does."""
    opened = Bundle.open(bundle)
    codec = images_codec(opened.processor, opened.model, profile=opened.engine("encoder").plan.profile)
    assert isinstance(codec, DetectionCodec)
    read = codec.encode(image)
    boxes = codec.read(each_image(bright(codec.collate([read])), 1)[0], read)
    return [{"points": [list(point) for point in box.points], "score": box.score} for box in boxes]


MANY = [
    page((8, 8, 60, 24), (70, 40, 120, 60)),
    page((8, 8, 60, 24)),
    page((20, 100, 180, 130), (20, 20, 90, 50), size=(200, 300)),
    page(),
    page((5, 5, 120, 30), size=(400, 200)),
]


def test_boxes_are_in_pixels_of_the_page_and_the_same_however_it_is_sent(finding: Running) -> None:
    image, client = MANY[0], finding.client
    ways = [
        client.post("/predict", files={"image": ("a.png", image, "image/png")}),
        client.post("/predict?model=text-detection", content=image, headers={"content-type": "image/png"}),
        finding.post("/predict", {"inputs": text(image)}),
        finding.post("/predict", {"inputs": "data:image/png;base64," + text(image)}),
    ]
    answers = [way.json() for way in ways]
    assert answers == [answers[0]] * len(ways)
    first, second = answers[0]
    assert 0.5 < second["score"] <= 0.91
    # A text's box is a little larger than what is bright of it.
    (left, top), _, (right, bottom), _ = first["points"]
    assert 0 <= left < 8
    assert 0 <= top < 8
    assert 60 < right < 80
    assert 24 < bottom < 40


def test_boxes_are_those_of_run_alone_and_among_pages_of_other_sizes(finding: Running, bundle: Path) -> None:
    expected = [by_hand(bundle, image) for image in MANY]
    assert [len(boxes) for boxes in expected] == [2, 1, 2, 0, 1]
    assert [asked(finding, text(image)) for image in MANY] == expected
    assert asked(finding, list(map(text, MANY))) == expected
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda image: asked(finding, [text(image)] * 3), MANY * 3)
        assert list(found) == [[boxes] * 3 for boxes in expected] * 3


def test_a_page_that_lies_on_its_side_is_read_upright(finding: Running) -> None:
    with Image.open(io.BytesIO(MANY[0])) as upright:
        turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # whoever shows it turns it clockwise
    assert asked(finding, text(encoded(turned, exif=exif))) == asked(finding, text(MANY[0]))


@pytest.mark.parametrize(
    ("inputs", "more", "says"),
    [
        ([], {}, "no image is given"),
        (text(b"no page"), {}, "inputs cannot be decoded: it is none of BMP"),
        ([text(MANY[0]), text(MANY[0][:60])], {}, "inputs[1] cannot be decoded"),
        (text(MANY[0]), {"top_k": 3}, "unknown field top_k"),
        (text(page(size=(400, 400))), {}, "inputs has 400 x 400 pixels; expected at most 100000"),
        ("https://example.com/page.png", {}, "inputs is a URL, and this server fetches nothing"),
    ],
)
def test_a_page_that_cannot_be_read_is_refused_by_name(
    finding: Running, inputs: Any, more: Any, says: str
) -> None:
    assert says in asked(finding, inputs, 400, **more)["error"]
    assert asked(finding, text(MANY[1])) != []


def test_limits_information_and_metrics_are_as_of_other_models(finding: Running) -> None:
    too_many = asked(finding, [text(MANY[1])] * 9, 413)
    assert "9 images in one request; the limit is 8" in too_many["error"]
    told = finding.get("/info")["models"][0]
    assert (told["task"], told["max_batch_rows"], told["labels"]) == ("text-detection", 4, [])
    large = encoded(Image.effect_noise((150, 150), 90).convert("RGB"))
    assert len(large) > 10_000
    assert isinstance(asked(finding, text(large)), list)
    before = metric(finding, "alula_batch_size_sum", model=PAGES)
    asked(finding, [text(MANY[1])] * 5)
    assert metric(finding, "alula_batch_size_sum", model=PAGES) - before == 5
    assert metric(finding, "alula_tokens_total", model=PAGES) == 0


def test_a_map_that_is_no_number_is_the_engines_failure(finding: Running) -> None:
    answer = asked(finding, text(page((8, 8, 60, 24), dark=BLUE)), 500)
    assert answer["error_type"] == "backend"
    assert asked(finding, text(MANY[1])) != []


class Engine:
    """Calls that end when they are let, what they were given, and how many pages were decoded before."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.shapes: list[tuple[int, ...]] = []

    async def run(self, feeds: Feeds) -> Outcome:
        self.shapes.append(feeds["x"].shape)
        await self.open.wait()
        return Outcome(outputs=bright(feeds))


def pages_of(bundle: Path, engine: Engine, plan: Plan | None = None, **limits: Any) -> Pages:
    opened = Bundle.open(bundle)
    if plan:
        changed = replace(opened.engine("encoder"), plan=plan)
        opened = replace(opened, manifest=replace(opened.manifest, engines={"encoder": changed}))

    def ignore(name: str, ran: Ran) -> None:
        assert name == PAGES
        assert ran.rows

    return Pages(opened, engine.run, ServeOptions(bundles=(bundle,), **limits), ignore)


def upload(image: bytes) -> Upload:
    return Upload(content=image, name="page")


def test_pages_wait_as_they_came_and_more_than_may_wait_are_refused(bundle: Path) -> None:
    async def scenario() -> None:
        engine, decoded = Engine(), 0
        service = pages_of(bundle, engine, max_waiting_rows=12, max_client_batch=12)
        encode = service.codec.encode

        def counted(image: Path | bytes, name: str = "") -> Any:
            nonlocal decoded
            decoded += 1
            return encode(image, name)

        service.codec.encode = counted  # type: ignore[method-assign]
        async with service.at_work():
            try:
                many = asyncio.ensure_future(service.answer([upload(MANY[1])] * 12, 5))
                while decoded < 4 + DECODERS or not engine.shapes:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert decoded == 4 + DECODERS  # those of one batch, and those being decoded beside it
                assert 12 - decoded <= service.waiting < 12
                with pytest.raises(Overloaded, match="pages are waiting"):
                    await service.answer([upload(MANY[1])] * (13 - service.waiting), 5)
                waiting = service.waiting
                leaving = asyncio.ensure_future(service.answer([upload(MANY[1])], 5))
                await asyncio.sleep(0)
                assert service.waiting == waiting + 1
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                assert service.waiting == waiting
            finally:
                engine.open.set()
            assert len(await many) == 12
            assert service.waiting == 0
            assert await service.answer([upload(MANY[3])], 5) == [[]]

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_no_more_pages_of_a_size_go_together_than_its_profile_takes(bundle: Path) -> None:
    across = {"width": Range(32, 64, 256)}
    low = Profile({"batch": Range(1, 1, 4), "height": Range(32, 64, 128), **across})
    high = Profile({"batch": Range(2, 2, 2), "height": Range(192, 192, 256), **across})
    spanning = Profile({"batch": Range(1, 1, 4), "height": Range(32, 64, 256), **across})
    plan = Plan(profile=spanning, tuned=(low, high))

    async def scenario() -> None:
        engine = Engine()
        service = pages_of(bundle, engine, plan)
        tall, between = page((9, 9, 150, 60), size=(192, 192)), page(size=(160, 160))
        async with service.at_work():
            try:
                first = asyncio.ensure_future(service.answer([upload(MANY[0])], 5))
                while not engine.shapes:
                    await asyncio.sleep(0.01)
                # The engine is at the first one now, so that all others wait.
                others = asyncio.ensure_future(service.answer([upload(tall)] * 4, 5))
                while service.batcher.waiting < 4:
                    await asyncio.sleep(0.01)
            finally:
                engine.open.set()
            assert list(map(len, (*await first, *await others))) == [2, 1, 1, 1, 1]
            assert {shape[0] for shape in engine.shapes if shape[2] == 192} == {2}
            # Others are not held up by one that no profile takes.
            good = asyncio.ensure_future(service.answer([upload(MANY[0])], 5))
            with pytest.raises(ShapeError, match="in none of the profiles"):
                await service.answer([upload(between)], 5)
            assert list(map(len, await good)) == [2]

    asyncio.run(asyncio.wait_for(scenario(), 30))
