"""Whether HunyuanOCR's graphs are transformers' at published sizes: random weights, real grids, answers of 64 tokens.

    PYTHONPATH=tests/models python examples/prove_hunyuan.py --layers 2            reduced in depth: minutes
    PYTHONPATH=tests/models python examples/prove_hunyuan.py --layers 24 --vision-layers 27     as published: 4 GB twice

A checkpoint is written with random weights and read by transformers and by `alula build --compat transformers`, both in
fp32. Each prompt's answer is written greedily alone and beside all the others; transformers is asked one prompt at a
time, since it places images wrong in a batch. Logits behind the prompt and every token of the answer may be 1e-4 apart,
and a token may be another one where the reference's two best are less than 1e-3 apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import tiny_hunyuan
import torch
from gpu_bench.ocr_model import VISION, write
from numpy.typing import NDArray
from transformers import HunYuanVLForConditionalGeneration

from alula.build import BuildRequest, build
from alula.bundles import Bundle
from alula.core.decoding import IMAGE_AT, PATCHES, Room, Work
from alula.core.progress import Silent
from alula.engines import open_decoding
from alula.generate import Request
from alula.local import local_engines
from alula.prompting import Prompts

Floats = NDArray[np.float32]
STEPS, APART, TIE = 64, 1e-4, 1e-3
SEEN = 100 * APART
"""Another page of the same size must move a logit by more, or none was looked at."""
PATCH = VISION["patch_size"]
ASKED: Mapping[str, Sequence[tuple[int, int]]] = {
    "32 x 32": [(32, 32)],
    "40 x 40": [(40, 40)],
    "12 x 98": [(12, 98)],
    "98 x 12": [(98, 12)],
    "32 x 32 and 20 x 54": [(32, 32), (20, 54)],
}
"""Patches down and across."""


def main() -> int:
    """0 if all logits and tokens are as they should be."""
    options = parsed()
    folder, to = options.work / "checkpoint", options.work / "bundle"
    model = written(folder, options.layers, options.vision_layers)
    if not to.is_dir():
        asked = {"target": options.target, "precision": "fp32", "compat": options.compat}
        build(BuildRequest(model=str(folder), to=to, reference="own-graph", **asked), Silent())
    bundle = Bundle.open(to)
    requests = {name: request(Prompts.open(bundle), pages) for name, pages in ASKED.items()}
    print(
        f"{options.layers} and {options.vision_layers} layers, {options.target}, {STEPS} tokens", flush=True
    )
    print("\n| patches | tokens of the prompt | company | largest difference | other tokens | s |")
    print("|---|---|---|---|---|---|")
    failed, known = False, dict[str, tuple[list[int], Floats]]()
    with closing(open_decoding(local_engines(bundle), Room(sequences=8, blocks=1024, block_tokens=16))) as it:
        companies = [*([name] for name in requests), list(requests)]
        for company in companies:
            begun = perf_counter()
            answers = answered(it, [requests[name] for name in company])
            took = perf_counter() - begun
            for name, (answer, logits) in zip(company, answers, strict=True):
                if name not in known or known[name][0] != answer:
                    known[name] = answer, reference(model, requests[name], answer)
                expected = known[name][1]
                off = float(np.abs(logits - expected).max())
                behind = expected.max(axis=-1) - expected[np.arange(STEPS), answer]
                wrong = int((behind >= TIE).sum())
                failed |= not (off <= APART) or wrong > 0
                beside = "alone" if len(company) == 1 else "all"
                size = len(requests[name].prompt)
                print(f"| {name} | {size} | {beside} | {off:.1e} | {wrong} | {took:.1f} |", flush=True)
        first, pages = next(iter(ASKED.items()))
        [(_, other)] = answered(it, [request(Prompts.open(bundle), pages, seed=1)])
        moved = float(np.abs(other[0] - known[first][1][0]).max())
        print(f"\nanother page of {first} moves a logit by {moved:.2g}")
        failed |= not moved > SEEN
    print("\nbeyond the limits" if failed else "\nwithin the limits")
    return int(failed)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vision-layers", type=int, default=2)
    parser.add_argument("--target", default="onnxruntime", choices=["onnxruntime", "openvino"])
    parser.add_argument("--compat", default="transformers", help="tencent shows that a difference is seen")
    parser.add_argument("--work", type=Path, default=Path("build/prove-hunyuan"))
    return parser.parse_args()


def written(to: Path, layers: int, vision_layers: int) -> Any:
    """A checkpoint with random weights, unless it is there; the model in eval mode."""
    if not to.is_dir():
        write(to, "published", (layers, vision_layers))
    return HunYuanVLForConditionalGeneration.from_pretrained(to, dtype=torch.float32).eval()


def request(prompts: Prompts, pages: Sequence[tuple[int, int]], seed: int = 0) -> Request:
    """A question about noisy pages."""
    rng = np.random.default_rng([seed, len(pages), pages[0][0]])
    images = [rng.integers(0, 256, (down * PATCH, across * PATCH, 3), np.uint8) for down, across in pages]
    return prompts.look("Read!", images)


def answered(decoding: Any, requests: Sequence[Request]) -> list[tuple[list[int], Floats]]:
    """Each one's greedy answer, and the logits that each of its tokens was chosen by, [tokens, vocabulary]."""
    for at, asked in enumerate(requests):
        decoding.start(at, asked.given)
    new = [asked.prompt for asked in requests]
    logits: list[list[Floats]] = [[] for _ in requests]
    for _ in range(STEPS):
        work = [Work(sequence=at, tokens=tokens, answers=True) for at, tokens in enumerate(new)]
        for row, held in zip(decoding.step(work), logits, strict=True):
            held.append(without_images(row))
        new = [(int(held[-1].argmax()),) for held in logits]
    for at in range(len(requests)):
        decoding.release(at)
    return [([int(row.argmax()) for row in held], np.stack(held)) for held in logits]


def without_images(logits: Floats) -> Floats:
    """Transformers looks for an image at each token of that id, those of an answer too."""
    changed = logits.copy()
    changed[..., tiny_hunyuan.IMAGE] = 0
    return changed


def reference(model: Any, asked: Request, answer: Sequence[int]) -> Floats:
    """Behind the prompt and each token of an answer but the last, in one call without a cache."""
    ids = torch.tensor([[*asked.prompt, *answer[:-1]]])
    images = [asked.given[name] for name in sorted(asked.given) if name.startswith(PATCHES)]
    kinds = torch.zeros(ids.shape, dtype=torch.int32)
    kinds[0, torch.from_numpy(asked.given[IMAGE_AT])] = 1
    with torch.no_grad():
        found = model(
            input_ids=ids,
            pixel_values=torch.from_numpy(
                np.concatenate([each.reshape(-1, 3 * PATCH**2) for each in images])
            ),
            image_grid_thw=torch.tensor([[1, *each.shape[:2]] for each in images]),
            mm_token_type_ids=kinds,
            use_cache=False,
            logits_to_keep=len(answer),
        ).logits[0]
    return without_images(found.numpy())


if __name__ == "__main__":
    sys.exit(main())
