"""Images in a prompt: one token each where it is rendered, as many as the vision part makes where it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.codecs.patches import Patcher, Patches
from alula.codecs.pictures import as_rgb
from alula.codecs.places import places_of
from alula.core.decoding import IMAGE_AT, PATCHES, PLACES
from alula.core.errors import InputError, MissingExtraError
from alula.core.tensor import Feeds

if TYPE_CHECKING:
    from PIL.Image import Image

Seen: TypeAlias = "Image | NDArray[Any]"
"""An image: of Pillow, levels uint8 [height, width, 3], or what `Patcher.encode` gave for one, float32."""


def patches_of(image: Seen, patcher: Patcher) -> Patches:
    """The patches of an upright image; those that are patches already are taken as they are."""
    if not isinstance(image, np.ndarray):
        return patcher.encode(as_rgb(image))
    if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size:
        try:
            from PIL import Image as pillow  # noqa: PLC0415, N813 - texts are served without Pillow
        except ImportError as error:
            raise MissingExtraError("reading images", "images") from error
        return patcher.encode(pillow.fromarray(image))
    cut = image.dtype == np.float32 and image.ndim == 3 and image.shape[2] == patcher.features
    if cut and image.size and not any(side % patcher.merge for side in image.shape[:2]):
        return image
    raise InputError(
        f"an image is {image.dtype} {image.shape}; expected levels uint8 [height, width, 3], or patches float32 "
        f"[down, across, {patcher.features}] with sides of multiples of {patcher.merge}"
    )


def with_images(
    ids: Sequence[int], image: int, patcher: Patcher, images: Sequence[Patches]
) -> tuple[tuple[int, ...], Feeds]:
    """A prompt with every place for an image as long as the image is, and what a sequence with it is started with.

    Refuses one that has not a place for each image: an answer without looking would be made up.
    """
    kept = [token == image for token in ids]
    if sum(kept) != len(images):
        raise InputError(
            f"the prompt has places for {sum(kept)} images, {len(images)} are given; "
            "expected one for each, as the chat template writes them"
        )
    sizes = iter([patcher.tokens(*each.shape[:2]) for each in images])
    prompt = tuple(token for at, token in enumerate(ids) for _ in range(next(sizes) if kept[at] else 1))
    return prompt, given_of(prompt, image, patcher, images) if images else {}


def given_of(prompt: Sequence[int], image: int, patcher: Patcher, images: Sequence[Patches]) -> Feeds:
    """What a sequence with this whole prompt is started with; refused where its places are not those of the images."""
    grids = [(each.shape[0] // patcher.merge, each.shape[1] // patcher.merge) for each in images]
    places = places_of(prompt, image, grids)
    at = np.flatnonzero(np.asarray(prompt) == image)
    return {
        IMAGE_AT: at,
        PLACES: places,
        **{f"{PATCHES}.{number}": each for number, each in enumerate(images)},
    }
