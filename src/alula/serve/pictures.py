"""Served models that read images, and those of them whose images are small: decoding, and the batcher behind it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from alula.batching import Answered
from alula.bundles import Bundle
from alula.codecs import DetectionCodec, RecognitionCodec, classes, each_image, images_codec, vectors
from alula.codecs.images import Pixels
from alula.codecs.recognition import STEP
from alula.core.errors import InputError
from alula.core.tensor import Feeds
from alula.serve.decoding import Decoders
from alula.serve.opening import PART
from alula.serve.options import ServeOptions
from alula.serve.outcome import answered
from alula.serve.service import Batched, Observe, Run
from alula.serve.uploads import Upload

T = TypeVar("T")

READING = ("image-classification", "image-embeddings", "text-detection", "text-recognition")
"""Tasks whose models are served here."""


class Uploaded(Batched[T]):
    """A bundle being served that reads images: who decodes them, and the batcher in front of its engine."""

    def __init__(self, bundle: Bundle, run: Run, options: ServeOptions, observe: Observe) -> None:
        super().__init__(bundle, bundle.model, run, options, observe)
        self._decoders = Decoders(options)

    @abstractmethod
    async def answer(self, images: Sequence[Upload], best: int) -> list[Any]:
        """What the model says of each image; of classes the `best`."""

    @abstractmethod
    async def outputs(self, images: Sequence[Upload]) -> list[Feeds]:
        """What the engine gives for each image."""

    async def outputs_of(self, batch: Pixels) -> list[Feeds]:
        """What the engine gives for images made into pixels elsewhere, in one array as the engine takes it."""
        self._admit(len(batch), "images")
        rows = self._rows(batch)
        sizes = {
            dim: size
            for dim, size in zip(self.spec.part(PART).inputs[0].shape[1:], batch.shape[1:], strict=True)
            if isinstance(dim, str)
        }
        # Refused by itself, and not together with the images of others that it would be run with.
        self._profile.padded({**sizes, "batch": 1}, keep=sizes.keys() - {"width"} if self.pads else sizes)
        return await self._queued(rows, [sizes.get("width", 1)] * len(rows))

    @abstractmethod
    def _rows(self, batch: Pixels) -> list[T]:
        """The same images, each as the batcher takes one."""

    pads = False
    """Whether images are padded on their right."""


class Pictures(Uploaded[Pixels]):
    """A bundle being served that names what is in images, makes vectors of them, or reads lines of text."""

    def __init__(self, bundle: Bundle, run: Run, options: ServeOptions, observe: Observe) -> None:
        super().__init__(bundle, run, options, observe)
        codec = images_codec(
            bundle.processor, bundle.model, profile=self._profile, most_pixels=options.max_image_pixels
        )
        assert not isinstance(codec, DetectionCodec), "pages are read elsewhere"
        self.codec = codec
        self.pads = isinstance(codec, RecognitionCodec)

    async def answer(self, images: Sequence[Upload], best: int) -> list[Any]:
        """What the model says of each image: its `best` classes, its vector, or the line that stands in it."""
        return [self._read(output, best) for output in await self.outputs(images)]

    async def outputs(self, images: Sequence[Upload]) -> list[Feeds]:
        """What the engine gives for each image."""
        if not images:
            raise InputError("no image is given; expected at least one")
        with self._expecting(len(images), "images"):
            pixels = await self._decoders.each(images, lambda one: self.codec.encode(one.content, one.name))
        return await self._queued(pixels, [self._cost(image) for image in pixels])

    def _rows(self, batch: Pixels) -> list[Pixels]:
        return list(batch) if isinstance(self.codec, RecognitionCodec) else self.codec.rows(batch)

    def _read(self, output: Feeds, best: int) -> Any:
        if isinstance(self.codec, RecognitionCodec):
            return asdict(self.codec.read(output["probabilities"]))
        if self.spec.task == "image-embeddings":
            return {"embedding": vectors(output, normalize=self.spec.normalize).tolist()}
        return [asdict(scored) for scored in classes(output, self.spec)[:best]]

    def _cost(self, image: Pixels) -> int:
        """Columns of a line, which differ; any other image costs what all of them do."""
        return image.shape[2] if isinstance(self.codec, RecognitionCodec) else 1

    async def _call(self, images: list[Pixels]) -> Answered[Feeds]:
        """Lines of one width go together: nothing tells the model where a shorter one would end."""
        groups: dict[int, list[int]] = {}
        for at, image in enumerate(images):
            groups.setdefault(-(-self._cost(image) // STEP), []).append(at)
        found: dict[int, Feeds] = {}
        ran = []
        for places in groups.values():
            feeds = self.codec.collate([images[at] for at in places], self._profile)
            ran.append(await self._run(feeds))
            found.update(zip(places, each_image(ran[-1].outputs, len(places)), strict=True))
        return answered([found[at] for at in range(len(images))], ran)
