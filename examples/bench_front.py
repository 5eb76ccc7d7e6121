"""What a request costs the front, by an engine that costs almost nothing; this tree's, and others' in turns with it.

    python examples/bench_front.py [--clients 1 32] [--rounds 5] [--seconds 2] [BEFORE=PATH/src ...]

MiniLM's tokenizer and vectors of its length, but one layer of 32 with random weights in between. Linux only, and with
`wrk` (`apt-get install wrk`). A server of another tree runs in this environment, with that tree's sources.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from bench_serving import free_port, interleaved, ready, spread
from demo import HERE, alula, packaged_minilm
from loads import Load, Target, loaded
from safetensors.numpy import load_file, save_file

import alula as package
from alula.core.machine import cpu_name, usable_cores

WIDE, INNER, GIVEN = 32, 64, 384
SHORTEST, LONGEST, TEXTS = 8, 32, 512
PATH = "/v1/embeddings"


def tiny(to: Path) -> Path:
    """The folder of a MiniLM of one narrow layer, widened to MiniLM's vectors at its end."""
    source, draws = packaged_minilm(), np.random.default_rng(0)
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("model.safetensors"))
    narrow = {
        "num_hidden_layers": 1,
        "hidden_size": WIDE,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
    }
    config = json.loads((source / "config.json").read_text("utf-8"))
    (to / "config.json").write_text(json.dumps({**config, **narrow}), "utf-8")
    sizes = {config["hidden_size"]: WIDE, config["intermediate_size"]: INNER}
    weights = {
        name: value
        if value.dtype.kind != "f"
        else draws.normal(0, 0.3, [sizes.get(size, size) for size in value.shape]).astype(np.float32)
        for name, value in load_file(source / "model.safetensors").items()
        if ".layer." not in name or ".layer.0." in name
    }
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    (to / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": WIDE}))
    dense = {"in_features": WIDE, "out_features": GIVEN, "bias": True}
    (to / "2_Dense").mkdir()
    (to / "2_Dense" / "config.json").write_text(
        json.dumps({**dense, "activation_function": "torch.nn.modules.linear.Identity"})
    )
    widening = {
        "linear.weight": draws.normal(0, 0.2, (GIVEN, WIDE)).astype(np.float32),
        "linear.bias": np.zeros(GIVEN, np.float32),
    }
    save_file(widening, to / "2_Dense" / "model.safetensors", {"format": "pt"})
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    (to / "modules.json").write_text(json.dumps(modules))
    return to


def built(*more: str) -> Path:
    """Its bundle, built once with some more options."""
    bundle = HERE / "-".join(("tiny", *(word.strip("-") for word in more)))
    if not bundle.is_dir():
        HERE.mkdir(exist_ok=True)
        words = ("--name", "tiny", "--target", "openvino", "--precision", "fp32", *more)
        print(alula("build", str(tiny(HERE / "tiny-checkpoint")), "-o", str(bundle), *words))
    return bundle


def bodies(bundle: Path, to: Path) -> Path:
    """Requests of one short text each."""
    vocabulary = json.loads((bundle / "tokenizer" / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]
    draws = random.Random(7)
    texts = (
        " ".join(draws.choice(words) for _ in range(draws.randint(SHORTEST, LONGEST) - 2))
        for _ in range(TEXTS)
    )
    to.write_text("".join(json.dumps({"input": text}) + "\n" for text in texts))
    return to


@contextlib.contextmanager
def served(bundle: Path, sources: Path) -> Iterator[Target]:
    """A server of one tree's sources."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "alula", "serve", str(bundle), "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(sources.resolve())}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            yield Target(url=url, path=PATH, pids=(process.pid, ready(url, process)["engine"]["pid"]))
        finally:
            process.terminate()


def main() -> int:
    """Measure in turns, and print medians with least and most."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("others", nargs="*", metavar="NAME=SOURCES", help="other trees")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    given = parser.parse_args()
    bundle = built()
    asked = bodies(bundle, HERE / "short.txt")
    trees = {name: Path(sources) for name, _, sources in (each.partition("=") for each in given.others)}
    trees["this tree"] = Path(package.__file__).parents[1]
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(served(bundle, sources)) for name, sources in trees.items()}
        for target in targets.values():
            loaded(target, asked, max(given.clients), given.seconds)
        turns: dict[str, Callable[[], Load]] = {
            f"{name}, {clients} client{'s' if clients > 1 else ''}": partial(
                loaded, target, asked, clients, given.seconds
            )
            for clients in given.clients
            for name, target in targets.items()
        }
        found = interleaved(turns, given.rounds)
    print(f"\n{cpu_name()}, {usable_cores()} cores; load {os.getloadavg()[0]:.1f}; {given.rounds} rounds\n")
    print("| | requests/s | p99 ms | front ms | engine ms | failed |\n|---|---|---|---|---|---|")
    for name, loads in found.items():
        figures = (("per_s", 0), ("p99_ms", 1), ("front_ms", 3), ("engine_ms", 3))
        cells = [spread([getattr(load, field) for load in loads], digits) for field, digits in figures]
        print(f"| {name} | {' | '.join(cells)} | {sum(load.failed for load in loads)} |")
    return int(any(load.failed for loads in found.values() for load in loads))


if __name__ == "__main__":
    sys.exit(main())
