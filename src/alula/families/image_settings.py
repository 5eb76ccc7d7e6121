"""The part of config.json that shapes a network for images, with the defaults transformers gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from alula.core.errors import ManifestError
from alula.core.parse import get

COLOURS = 3
"""Images come as red, green and blue; networks for other numbers of channels are refused."""

_RESNET: Mapping[str, Any] = {
    "num_channels": COLOURS,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": "bottleneck",
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}
_EFFICIENTNET: Mapping[str, Any] = {
    "num_channels": COLOURS,
    "width_coefficient": 2.0,
    "depth_coefficient": 3.1,
    "depth_divisor": 8,
    "kernel_sizes": [3, 3, 5, 3, 5, 5, 3],
    "in_channels": [32, 16, 24, 40, 80, 112, 192],
    "out_channels": [16, 24, 40, 80, 112, 192, 320],
    "depthwise_padding": [],
    "strides": [1, 2, 2, 2, 1, 2, 1],
    "num_block_repeats": [1, 2, 2, 3, 3, 4, 1],
    "expand_ratios": [1, 6, 6, 6, 6, 6, 6],
    "squeeze_expansion_ratio": 0.25,
    "hidden_act": "swish",
    "pooling_type": "mean",
    "batch_norm_eps": 0.001,
}
_VIT: Mapping[str, Any] = {
    "num_channels": COLOURS,
    "image_size": 224,
    "patch_size": 16,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "qkv_bias": True,
    "pooler_act": "tanh",
}
_DINOV2: Mapping[str, Any] = {
    **_VIT,
    "patch_size": 14,
    "mlp_ratio": 4,
    "layer_norm_eps": 1e-6,
    "use_swiglu_ffn": False,
}
_STEM, _TOP = 32, 1280
_STAGES = ("kernel_sizes", "in_channels", "out_channels", "strides", "num_block_repeats", "expand_ratios")
_REDUCTION = 4
_EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetSettings:
    """Sizes and choices of a ResNet; `depths` counts the layers of each stage."""

    stem: int
    sizes: tuple[int, ...]
    depths: tuple[int, ...]
    bottleneck: bool
    activation: str
    first_stride: int
    stride_in_bottleneck: bool
    epsilon: float = _EPSILON

    @property
    def features(self) -> int:
        """How many numbers the classifier takes."""
        return self.sizes[-1]

    @property
    def smallest(self) -> int:
        """The least height and width of an image."""
        return 1

    def inner(self, size: int) -> int:
        """The width inside a bottleneck of `size`."""
        return size // _REDUCTION


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One block of an EfficientNet: widen, convolve each channel, weigh channels, narrow.

    `evenly` is whether a stride of two pads all four sides; otherwise bottom and right get one more.
    """

    inputs: int
    wide: int
    squeezed: int
    outputs: int
    kernel: int
    stride: int
    evenly: bool
    residual: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EfficientNetSettings:
    """Sizes and choices of an EfficientNet, scaled by its coefficients."""

    stem: int
    blocks: tuple[Block, ...]
    features: int
    activation: str
    pooling: str
    epsilon: float

    @property
    def smallest(self) -> int:
        """The least height and width of an image, of which every stride leaves something."""
        size = 1
        for block in reversed(self.blocks):
            size = size if block.stride == 1 else 2 * size - block.evenly
        return 2 * size


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionSettings:
    """Sizes and choices of a transformer over patches; `image` is the height and width of training.

    `scaled` layers multiply what they add, `means` puts the mean of the patches beside the first token. Networks with
    both interpolate their positions wherever an image is of another size; others where they are asked to. A `distilled`
    network has a second token behind the first. `pooled` and `pooler` are size and activation of the pooling layer.
    """

    hidden: int
    layers: int
    heads: int
    intermediate: int
    patch: int
    image: tuple[int, int]
    activation: str
    epsilon: float
    biased: bool
    scaled: bool = False
    means: bool = False
    distilled: bool = False
    pooled: int = 0
    pooler: str = ""

    @property
    def firsts(self) -> int:
        """How many tokens stand before the patches."""
        return 2 if self.distilled else 1

    @property
    def square(self) -> tuple[int, int]:
        """The size of a layer from token states to as many features."""
        return self.hidden, self.hidden

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches an image had in training, down and across."""
        return self.image[0] // self.patch, self.image[1] // self.patch

    @property
    def positions(self) -> int:
        """How many patches have a position."""
        return self.grid[0] * self.grid[1]

    @property
    def features(self) -> int:
        """How many numbers the classifier takes."""
        return 2 * self.hidden if self.means else self.hidden

    @property
    def smallest(self) -> int:
        """The least height and width of an image: those of a patch."""
        return self.patch

    def check_open(self) -> None:
        """Refuse images of any size where there is no square to interpolate: transformers takes any for one."""
        if self.grid[0] != self.grid[1]:
            raise ManifestError(
                f"is {self.image[0]} x {self.image[1]}; expected a square, since images of several sizes are asked "
                "for, and transformers interpolates positions of nothing else",
                "image_size",
            )

    def check_image(self, height: int, width: int) -> None:
        """Refuse images of a size that there are no positions for."""
        if min(height, width) < self.patch:
            raise ManifestError(f"is {self.patch}; images have {height} x {width} pixels", "patch_size")
        if not self.means and (height, width) != self.image:
            raise ManifestError(
                f"is {self.image[0]} x {self.image[1]}; the image processor gives {height} x {width}, "
                "and positions are interpolated for dinov2 alone, unless sizes are asked for with --height and --width",
                "image_size",
            )


ImageSettings: TypeAlias = ResNetSettings | EfficientNetSettings | VisionSettings


def read_resnet(config: Mapping[str, Any]) -> ResNetSettings:
    """Parse config.json of a ResNet."""
    raw = _with_defaults(_RESNET, config)
    _one_of(raw, "layer_type", "basic", "bottleneck")
    sizes, depths = _counts(raw, "hidden_sizes"), _counts(raw, "depths")
    if not sizes or len(sizes) != len(depths):
        raise ManifestError(f"has {len(depths)} stages, hidden_sizes has {len(sizes)}", "depths")
    return ResNetSettings(
        stem=get(raw, int, "embedding_size"),
        sizes=sizes,
        depths=depths,
        bottleneck=raw["layer_type"] == "bottleneck",
        activation=get(raw, str, "hidden_act"),
        first_stride=2 if get(raw, bool, "downsample_in_first_stage") else 1,
        stride_in_bottleneck=get(raw, bool, "downsample_in_bottleneck"),
    )


def read_efficientnet(config: Mapping[str, Any]) -> EfficientNetSettings:
    """Parse config.json of an EfficientNet."""
    raw = _with_defaults(_EFFICIENTNET, config)
    _one_of(raw, "pooling_type", "mean", "max")
    stages = {key: _counts(raw, key) for key in _STAGES}
    count = len(stages["strides"])
    if uneven := [key for key in _STAGES if len(stages[key]) != max(count, 1)]:
        raise ManifestError(f"has {len(stages[uneven[0]])} stages, strides has {count}", uneven[0])
    if odd := [size for size in stages["kernel_sizes"] if size < 3 or size % 2 == 0]:
        raise ManifestError(f"has {odd[0]}, expected odd numbers from 3", "kernel_sizes")
    if far := [stride for stride in stages["strides"] if stride > 2]:
        raise ManifestError(f"has {far[0]}, expected 1 or 2", "strides")
    scale = _Scale.read(raw)
    return EfficientNetSettings(
        stem=scale.width(_STEM),
        blocks=tuple(_blocks(raw, stages, scale)),
        features=scale.width(_TOP),
        activation=get(raw, str, "hidden_act"),
        pooling=raw["pooling_type"],
        epsilon=get(raw, float, "batch_norm_eps"),
    )


def read_vit(config: Mapping[str, Any]) -> VisionSettings:
    """Parse config.json of a ViT."""
    raw = _with_defaults(_VIT, config)
    return _vision(
        raw,
        get(raw, int, "intermediate_size"),
        pooled=get(raw, int, "pooler_output_size") if raw.get("pooler_output_size") else raw["hidden_size"],
        pooler=get(raw, str, "pooler_act"),
    )


def read_deit(config: Mapping[str, Any]) -> VisionSettings:
    """Parse config.json of a DeiT: a ViT with a token that learnt from a teacher."""
    return replace(read_vit(config), distilled=True)


def read_dinov2(config: Mapping[str, Any]) -> VisionSettings:
    """Parse config.json of a DINOv2; its positions are a square."""
    raw = _with_defaults(_DINOV2, config)
    if raw["use_swiglu_ffn"]:
        raise ManifestError("is true, which no graph is written for", "use_swiglu_ffn")
    intermediate = int(get(raw, int, "hidden_size") * get(raw, float, "mlp_ratio"))
    settings = _vision(raw, intermediate, scaled=True, means=True)
    if settings.grid[0] != settings.grid[1]:
        raise ManifestError(f"is {raw['image_size']!r}, expected a square", "image_size")
    return settings


def _vision(raw: Mapping[str, Any], intermediate: int, **choices: Any) -> VisionSettings:
    hidden, heads = get(raw, int, "hidden_size"), get(raw, int, "num_attention_heads")
    if heads < 1 or hidden % heads:
        raise ManifestError(
            f"is {heads}, which does not divide a hidden size of {hidden}", "num_attention_heads"
        )
    patch, (height, width) = get(raw, int, "patch_size"), _sides(raw["image_size"])
    if not 1 <= patch <= min(height, width):
        raise ManifestError(
            f"is {patch}, expected 1 to the size of an image, {height} x {width}", "patch_size"
        )
    return VisionSettings(
        hidden=hidden,
        layers=get(raw, int, "num_hidden_layers"),
        heads=heads,
        intermediate=intermediate,
        patch=patch,
        image=(height, width),
        activation=get(raw, str, "hidden_act"),
        epsilon=get(raw, float, "layer_norm_eps"),
        biased=get(raw, bool, "qkv_bias"),
        **choices,
    )


def _sides(given: Any) -> tuple[int, int]:
    sides = given if isinstance(given, list) else [given, given]
    if len(sides) != 2 or any(type(side) is not int for side in sides):
        raise ManifestError(f"is {given!r}, expected a whole number or two", "image_size")
    return sides[0], sides[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    wider: float
    deeper: float
    divisor: int

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> _Scale:
        divisor = get(raw, int, "depth_divisor")
        if divisor < 1:
            raise ManifestError(f"is {divisor}, expected at least 1", "depth_divisor")
        return cls(
            wider=get(raw, float, "width_coefficient"),
            deeper=get(raw, float, "depth_coefficient"),
            divisor=divisor,
        )

    def width(self, channels: int) -> int:
        """`channels` scaled, as a multiple of the divisor that is not below nine tenths of it."""
        wanted = channels * self.wider
        rounded = max(self.divisor, int(wanted + self.divisor / 2) // self.divisor * self.divisor)
        return int(rounded + self.divisor if rounded < 0.9 * wanted else rounded)

    def depth(self, repeats: int) -> int:
        return math.ceil(self.deeper * repeats)


def _blocks(raw: Mapping[str, Any], stages: Mapping[str, tuple[int, ...]], scale: _Scale) -> Iterator[Block]:
    squeeze, even = get(raw, float, "squeeze_expansion_ratio"), _counts(raw, "depthwise_padding", least=0)
    index = 0
    for stage in range(len(stages["strides"])):
        inputs, outputs = (scale.width(stages[key][stage]) for key in ("in_channels", "out_channels"))
        stride = stages["strides"][stage]
        for repeat in range(scale.depth(stages["num_block_repeats"][stage])):
            yield Block(
                inputs=inputs,
                wide=inputs * stages["expand_ratios"][stage],
                squeezed=max(1, int(inputs * squeeze)),
                outputs=outputs,
                kernel=stages["kernel_sizes"][stage],
                stride=stride,
                evenly=index in even,
                residual=repeat > 0,
            )
            index, inputs, stride = index + 1, outputs, 1


def _with_defaults(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    raw = {**defaults, **{key: value for key, value in config.items() if value is not None}}
    if raw["num_channels"] != COLOURS:
        raise ManifestError(f"is {raw['num_channels']!r}, expected {COLOURS}", "num_channels")
    if raw.get("quantization_config") is not None:
        raise ManifestError("is set; expected a checkpoint in floating point", "quantization_config")
    return raw


def _one_of(raw: Mapping[str, Any], key: str, *allowed: str) -> None:
    if raw[key] not in allowed:
        raise ManifestError(f"is {raw[key]!r}, expected one of: {', '.join(allowed)}", key)


def _counts(raw: Mapping[str, Any], key: str, least: int = 1) -> tuple[int, ...]:
    values: list[Any] = get(raw, list, key)
    if wrong := [value for value in values if type(value) is not int or value < least]:
        raise ManifestError(f"has {wrong[0]!r}, expected whole numbers from {least}", key)
    return tuple(values)
