"""What is measured of HunyuanOCR, and who takes part: data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

REFERENCE, BF16, COMPILED = "torch-fp32", "torch-bf16", "torch-compile-bf16"
OURS, LARGE, VAST, EXACT = "alula-fp16", "alula-fp16-large", "alula-fp16-vast", "alula-fp32"
ALONE = "alula-fp16-alone"
TOGETHER = "alula-fp32-together"
"""Not a contender: what `EXACT` says when all prompts are written side by side."""

TITLES: Mapping[str, str] = {
    REFERENCE: "PyTorch fp32, eager",
    BF16: "PyTorch bf16, eager",
    COMPILED: "PyTorch bf16, torch.compile, CUDA graphs",
    OURS: "alula fp16",
    ALONE: "alula fp16, one page at a time",
    LARGE: "alula fp16, large pages",
    VAST: "alula fp16, vast pages",
    EXACT: "alula fp32",
    TOGETHER: "alula fp32, side by side",
}
BLOCKS = 3
"""Of layers, into which decoders are cut, and the vision part of vast pages, with a block before and one behind."""


def blocks_of(name: str, count: int = BLOCKS) -> tuple[str, ...]:
    """The parts that a part in blocks is made of, the first layers first."""
    return tuple(f"{name}-{at}" for at in range(count))


PARTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    OURS: (("vision-page", "decoder"), ("vision-page", *blocks_of("decoder"))),
    ALONE: (("vision-page", "alone"), ("vision-page", *blocks_of("alone"))),
    LARGE: (("vision-large", *blocks_of("long")),),
    VAST: ((*blocks_of("vision-vast", BLOCKS + 2), *blocks_of("long")),),
    EXACT: (("vision-exact", *blocks_of("exact")),),
}
"""The parts that each of ours may be made of, those of vision first; those taken are the first that are all built."""

PEERS = (REFERENCE, BF16, COMPILED)
Kind = Literal["vision", "write", "read", "stream", "follow"]
Pages = tuple[tuple[int, int], ...]
"""The heights and widths of a prompt's pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is asked of whom; `sizes` are the pages of each prompt, of which most cases have one with one page."""

    name: str
    kind: Kind
    who: tuple[str, ...]
    sizes: tuple[Pages, ...]
    count: int = 1
    tokens: int = 1
    rounds: int = 7
    calls: int = 3
    batches: int = 4
    jobs: int = 8
    limit_s: float = 90.0

    @property
    def size(self) -> tuple[int, int]:
        """Of the first prompt's first page."""
        return self.sizes[0][0]

    @property
    def message(self) -> dict[str, Any]:
        """The question of one turn."""
        if self.kind == "follow":
            prompts = [[list(page) for page in pages] for pages in self.sizes]
            return {"do": self.kind, "prompts": prompts, "tokens": self.tokens}
        asked: dict[str, Any] = {"do": self.kind, "size": list(self.size)}
        if self.kind == "vision":
            return {**asked, "unseen": 1, "calls": self.calls}
        asked |= {"tokens": self.tokens, "count": self.count}
        return {**asked, "batches": self.batches, "jobs": self.jobs} if self.kind == "stream" else asked


GRIDS: Mapping[str, Pages] = {
    "32 x 32": ((32, 32),),
    "40 x 40": ((40, 40),),
    "12 x 98": ((12, 98),),
    "98 x 12": ((98, 12),),
    "32 x 32 and 20 x 54": ((32, 32), (20, 54)),
}
"""Patches down and across of the prompts by which logits of fp32 are held to PyTorch's, alone and side by side."""


def cases(*, tiny: bool, rounds: int) -> tuple[Case, ...]:
    """In the order of what matters, since the machine may go away; small ones for a CPU."""
    tokens, steps, most = (6, 6, min(rounds, 5)) if tiny else (256, 49, min(rounds, 5))
    patch = 4 if tiny else 16

    def page(side: int) -> Pages:
        # A small model's patches are 4 pixels, two of which are a step.
        return ((side // 80 * 8,) * 2,) if tiny else ((side, side),)

    def read(name: str, side: int, who: tuple[str, ...], count: int) -> Case:
        return Case(
            name=name, kind="read", who=who, sizes=(page(side),), count=count, tokens=tokens, rounds=most
        )

    def decode(count: int) -> Case:
        name, sizes = f"decode {count}", (page(640),)
        return Case(
            name=name, kind="write", who=everybody, sizes=sizes, count=count, tokens=steps, rounds=rounds
        )

    def vision(side: int, ours: str) -> Case:
        return Case(
            name=f"vision {side}", kind="vision", who=(*PEERS, ours), sizes=(page(side),), rounds=most
        )

    everybody = (*PEERS, OURS)
    follow = Case(
        name="errors",
        kind="follow",
        who=everybody,
        sizes=(page(640),),
        tokens=6 if tiny else 64,
        limit_s=120.0,
    )
    grids = tuple(tuple((down * patch, across * patch) for down, across in each) for each in GRIDS.values())
    largest = (216, 408) if tiny else (2160, 4096)
    stream = read("stream 640", 640, (OURS,), 8)
    return (
        follow,
        read("page 640", 640, (*everybody, ALONE), 1),
        read("pages 640 x 8", 640, (OURS,), 8),
        replace(follow, name="parity", who=(REFERENCE, EXACT), sizes=grids),
        decode(1),
        replace(stream, kind="stream", tokens=max(2, tokens // 4), rounds=min(3, most)),
        read("pages 1280 x 4", 1280, (LARGE,), 4),
        replace(read("page 4K", 640, (VAST,), 1), sizes=((largest,),), tokens=max(2, tokens // 4)),
        *(decode(count) for count in (8, 32)),
        *(vision(side, OURS) for side in (640, 320)),
        *(vision(side, LARGE) for side in (960, 1280)),
        vision(2048, VAST),
    )
