"""A served model that finds text on pages, which are of many sizes and may each take a good deal of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from alula.batching import Answered
from alula.bundles import Bundle
from alula.codecs import DetectionCodec, Page, each_image, images_codec
from alula.codecs.images import Pixels
from alula.core.errors import InputError, Overloaded
from alula.core.tensor import Feeds
from alula.serve.decoding import DECODERS
from alula.serve.opening import PART
from alula.serve.options import ServeOptions
from alula.serve.outcome import answered
from alula.serve.pictures import Uploaded
from alula.serve.service import Observe, Run
from alula.serve.uploads import Upload
from alula.serve.weights import within_bytes

R = TypeVar("R")


class Pages(Uploaded[Page]):
    """A bundle being served that finds where text stands in images.

    Pages are decoded only once one of the next batches can hold them: until then they wait as they came.
    """

    def __init__(self, bundle: Bundle, run: Run, options: ServeOptions, observe: Observe) -> None:
        super().__init__(bundle, run, options, observe)
        codec = images_codec(
            bundle.processor, bundle.model, profile=self._profile, most_pixels=options.max_image_pixels
        )
        assert isinstance(codec, DetectionCodec), f"{bundle.model.task} is read by {type(codec).__name__}"
        self.codec = codec
        self._sides = bundle.model.part(PART).inputs[0].shape[2:]
        self._places = asyncio.Semaphore(self.policy.max_rows + DECODERS)
        self._outside: set[object] = set()

    @property
    def waiting(self) -> int:
        """Pages that wait for a batch, decoded or not."""
        return len(self._outside) + self.batcher.waiting

    async def answer(self, images: Sequence[Upload], best: int) -> list[Any]:
        """The boxes of each image, in its own pixels."""
        return await self._each(images, self._boxes)

    async def outputs(self, images: Sequence[Upload]) -> list[Feeds]:
        """The map of each image."""
        return await self._each(images, self._map)

    def _rows(self, batch: Pixels) -> list[Page]:
        return [Page(pixels=one, width=one.shape[-1], height=one.shape[-2]) for one in batch]

    async def _each(self, images: Sequence[Upload], read: Callable[[Feeds, Page], R]) -> list[R]:
        """What is read from the map of each image."""
        if not images:
            raise InputError("no image is given; expected at least one")
        self._admit(len(images), "images")
        if self.waiting and self.waiting + len(images) > self.policy.max_waiting_rows:
            raise Overloaded(
                f"{self.waiting} pages are waiting", retry_s=self.batcher.wait_s(len(self._outside))
            )
        with self._decoders.expecting(sum(await self._decoders.sizes(images))):
            return await self._all(images, read)

    async def _all(self, images: Sequence[Upload], read: Callable[[Feeds, Page], R]) -> list[R]:
        reading = [asyncio.ensure_future(self._one(image, read)) for image in images]
        self._outside.update(reading)
        try:
            return list(await asyncio.gather(*reading))
        finally:
            self._outside.difference_update(reading)
            for each in reading:
                each.cancel()

    async def _one(self, image: Upload, read: Callable[[Feeds, Page], R]) -> R:
        async with self._places:
            self._outside.discard(asyncio.current_task())
            page = await self._decoders.run(lambda: self.codec.encode(image.content, image.name))
            sizes = self._sizes(page)
            # Refused by itself, and not together with the pages of others that it would be run with.
            self._profile.padded({**sizes, "batch": 1}, keep=sizes)
            (output,) = await self._queued([page], [sizes.get("width", 1)])
            return await self._decoders.run(lambda: read(output, page))

    def _boxes(self, output: Feeds, page: Page) -> list[dict[str, Any]]:
        return [asdict(box) for box in self.codec.read(output, page)]

    def _map(self, output: Feeds, page: Page) -> Feeds:
        return output

    def _sizes(self, page: Page) -> dict[str, int]:
        """What the page makes of the axes that are open."""
        sides = zip(self._sides, page.pixels.shape[1:], strict=True)
        return {axis: size for axis, size in sides if isinstance(axis, str)}

    async def _call(self, pages: list[Page]) -> Answered[Feeds]:
        """Pages of one size go together, as many as the engine takes of it."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, page in enumerate(pages):
            groups.setdefault(page.pixels.shape, []).append(at)
        loop = asyncio.get_running_loop()
        found: dict[int, Feeds] = {}
        ran = []
        for places in groups.values():
            first = pages[places[0]]
            most = min(
                self._together(self._sizes(first)), within_bytes([first.pixels], self.policy.max_bytes)
            )
            for some in (places[at : at + most] for at in range(0, len(places), most)):
                feeds = await loop.run_in_executor(
                    None, self.codec.collate, [pages[at] for at in some], self._profile
                )
                ran.append(await self._run(feeds))
                found.update(zip(some, each_image(ran[-1].outputs, len(some)), strict=True))
        return answered([found[at] for at in range(len(pages))], ran)

    def _together(self, sizes: Mapping[str, int]) -> int:
        """How many pages of one size the engine takes in one call."""
        return max(part.axes["batch"].max for part in self._profile.parts if part.takes(sizes))
