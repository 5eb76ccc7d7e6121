"""A served model that reads images: their decoding, and the batcher in front of its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Any

from alula.batching import Batcher, BatchPolicy, Ran
from alula.bundles import Bundle
from alula.codecs import ImageCodec, RecognitionCodec, classes, each_image, vectors
from alula.codecs.images import Pixels
from alula.codecs.recognition import STEP
from alula.core.errors import InputError
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.serve.errors import Refused
from alula.serve.opening import PART
from alula.serve.options import ServeOptions
from alula.serve.service import Run
from alula.serve.uploads import Upload

READING = ("image-classification", "image-embeddings", "text-recognition")
"""Tasks whose models are served here."""

DECODERS = 2
"""Images that are decoded at a time: each may take as much memory as `max_image_pixels` of RGB do."""


class Pictures:
    """A bundle being served that names what is in images, makes vectors of them, or reads lines of text."""

    def __init__(
        self, bundle: Bundle, run: Run, options: ServeOptions, observe: Callable[[str, Ran], None]
    ) -> None:
        profile = bundle.engine(PART).plan.profile
        self.bundle = bundle
        self.spec = bundle.model
        self.codec: ImageCodec | RecognitionCodec
        if self.spec.task == "text-recognition":
            self.codec = RecognitionCodec(self.spec, most_pixels=options.max_image_pixels)
        else:
            self.codec = ImageCodec.open(
                bundle.processor, self.spec, profile=profile, most_pixels=options.max_image_pixels
            )
        self._profile = profile
        self._run = run
        self._max_client_batch = options.max_client_batch
        self.policy = _policy(profile, options)
        self.batcher: Batcher[Pixels, Feeds] = Batcher(
            self._call, self.policy, observe=lambda ran: observe(self.name, ran)
        )
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoder")

    @property
    def name(self) -> str:
        """What requests call the model."""
        return self.spec.name

    @property
    def waiting(self) -> int:
        """Images that wait for a batch."""
        return self.batcher.waiting

    @property
    def limits(self) -> Mapping[str, Any]:
        """What one call of the engine holds."""
        return {"max_batch_rows": self.policy.max_rows}

    def at_work(self) -> AbstractAsyncContextManager[object]:
        """Requests are answered as long as this lasts, and those that were admitted at its end."""
        return self.batcher

    async def answer(self, images: Sequence[Upload], best: int) -> list[Any]:
        """What the model says of each image: its `best` classes, its vector, or the line that stands in it."""
        if not images:
            raise InputError("no image is given; expected at least one")
        if len(images) > self._max_client_batch:
            raise Refused(
                f"{len(images)} images in one request; the limit is {self._max_client_batch}", status=413
            )
        self.batcher.refuse_unless_room(len(images))
        loop = asyncio.get_running_loop()
        decoding = [
            loop.run_in_executor(self._decoders, self.codec.encode, image.content, image.name)
            for image in images
        ]
        try:
            pixels = [await each for each in decoding]
        finally:
            for each in decoding:
                each.cancel()
        outputs = await self.batcher.submit(pixels, [self._cost(image) for image in pixels])
        return [self._read(output, best) for output in outputs]

    def _read(self, output: Feeds, best: int) -> Any:
        if isinstance(self.codec, RecognitionCodec):
            return asdict(self.codec.read(output["probabilities"]))
        if self.spec.task == "image-embeddings":
            return {"embedding": vectors(output, normalize=self.spec.normalize).tolist()}
        return [asdict(scored) for scored in classes(output, self.spec)[:best]]

    def _cost(self, image: Pixels) -> int:
        """Columns of a line, which differ; any other image costs what all of them do."""
        return image.shape[2] if isinstance(self.codec, RecognitionCodec) else 1

    async def _call(self, images: list[Pixels]) -> list[Feeds]:
        """Lines of one width go together: nothing tells the model where a shorter one would end."""
        groups: dict[int, list[int]] = {}
        for at, image in enumerate(images):
            groups.setdefault(-(-self._cost(image) // STEP), []).append(at)
        found: dict[int, Feeds] = {}
        for places in groups.values():
            feeds = self.codec.collate([images[at] for at in places], self._profile)
            outputs = await self._run(feeds)
            found.update(zip(places, each_image(outputs, len(places)), strict=True))
        return [found[at] for at in range(len(images))]


def _policy(profile: Profile, options: ServeOptions) -> BatchPolicy:
    width = profile.axes.get("width")
    widest = width.max if width else 1
    return BatchPolicy(
        max_rows=profile.axes["batch"].max,
        max_cells=max(options.max_batch_tokens, widest),
        max_waiting_rows=max(options.max_waiting_rows, options.max_client_batch),
        max_waiting_tokens=max(options.max_waiting_tokens, options.max_client_batch * widest),
        steps=tuple(
            (part.axes["width"].max if width else 1, part.axes["batch"].max) for part in profile.tuned
        ),
    )
