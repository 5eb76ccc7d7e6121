"""Threads that decode the images of one model, and how many pixels may wait for them, counted before any is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import TypeVar

from alula.batching import Pace
from alula.codecs import pixels_in
from alula.core.errors import Overloaded
from alula.serve import records
from alula.serve.errors import Refused
from alula.serve.options import ServeOptions
from alula.serve.uploads import Upload

R = TypeVar("R")

DECODERS = 2
"""Images that are decoded at a time: each may take as much memory as `max_image_pixels` of RGB do."""

INLINE_IMAGES = 8
"""The heads of more images are read in a thread."""


class Decoders:
    """Work on images, a few at a time; and how much of it is on its way."""

    def __init__(self, options: ServeOptions) -> None:
        self.most_pixels = options.max_image_pixels
        self._most = max(options.max_waiting_pixels, options.max_image_pixels)
        self._expected = 0
        self._pace = Pace()
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoder")

    async def run(self, work: Callable[[], R]) -> R:
        """What comes of some work, once a thread is free."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def each(self, images: Sequence[Upload], decode: Callable[[Upload], R]) -> list[R]:
        """Every image decoded; refused before the first one is where they have too many pixels together."""
        sizes = await self.sizes(images)
        with self.expecting(sum(sizes)):
            decoding = [
                asyncio.ensure_future(self.run(self._timed(decode, image, size)))
                for image, size in zip(images, sizes, strict=True)
            ]
            try:
                return [await each for each in decoding]
            finally:
                for each in decoding:
                    each.cancel()

    async def sizes(self, images: Sequence[Upload]) -> list[int]:
        """The pixels of each image by its head; one that has too many, or is none, is refused."""

        def read() -> list[int]:
            return [pixels_in(image.content, image.name, most_pixels=self.most_pixels) for image in images]

        if len(images) <= INLINE_IMAGES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(None, read)

    @contextmanager
    def expecting(self, pixels: int) -> Iterator[None]:
        """So many pixels are on their way as long as this lasts; refused, for good or for now, if they are too many."""
        if pixels > self._most:
            raise Refused(f"images of {pixels} pixels in one request; the limit is {self._most}", status=413)
        if self._expected + pixels > self._most:
            raise Overloaded(
                f"images of {self._expected} pixels are waiting to be decoded, and {self._most} is the limit",
                retry_s=self._pace.seconds_for(self._expected / DECODERS),
            )
        records.current().pixels += pixels
        self._expected += pixels
        try:
            yield
        finally:
            self._expected -= pixels

    def _timed(self, decode: Callable[[Upload], R], image: Upload, size: int) -> Callable[[], R]:
        def work() -> R:
            begun = perf_counter()
            try:
                return decode(image)
            finally:
                self._pace = self._pace.after(size, perf_counter() - begun)

        return work
