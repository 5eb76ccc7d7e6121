r"""A bundle over HTTP, short texts, one client and several in turns: what batching gains where a batch costs little.

    python examples/bench_gpu_serving.py BUNDLE [--clients 1,8,32,64] [--rounds 5] [--seconds 2] [--serve=--unverified]

Linux, with `wrk`, whose CPU is its own; for an engine on a GPU, since on two cores `bench_serving.py` tells more. The
exit code is 1 if 32 clients do not get three times what one gets, or a request fails.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path
from statistics import median

from bench_serving import Served, interleaved, ratios, spread, texts
from loads import Load

from alula.bundles import Bundle
from alula.core.machine import cpu_name, usable_cores

LIMIT = 3.0
MANY = 32


def main() -> int:
    """Measure in turns; print medians with their spread, and what becomes of the limit."""
    options = parsed()
    if not shutil.which("wrk"):
        print("no wrk here; apt-get install wrk", file=sys.stderr)
        return 2
    counts = [int(each) for each in options.clients.split(",")]
    bodies = options.out.with_suffix(".bodies.txt")
    drawn = texts(Bundle.open(options.bundle).tokenizer, longest=options.longest)
    bodies.write_text("".join(json.dumps({"input": text}) + "\n" for text in drawn))
    with Served(options.bundle, *shlex.split(options.serve)) as server:
        for count in counts:
            server.load(bodies, count, options.seconds)
        turns: dict[str, list[Load]] = interleaved(
            {
                str(count): lambda count=count: server.load(bodies, count, options.seconds)  # type: ignore[misc]
                for count in counts
            },
            options.rounds,
        )
    options.out.write_text(json.dumps({who: [vars(each) for each in found] for who, found in turns.items()}))
    return report(turns, options)


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clients", default=f"1,8,{MANY},64", help=f"1 and {MANY} among them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument(
        "--longest", type=int, default=32, help="tokens of the longest text; the shortest has 8"
    )
    parser.add_argument("--serve", default="", metavar="WORDS", help="what else `alula serve` is told")
    parser.add_argument("--out", type=Path, default=Path("gpu-serving.json"))
    return parser.parse_args()


def report(turns: dict[str, list[Load]], options: argparse.Namespace) -> int:
    """The table, and 0 if the limit holds."""
    one = [load.per_s for load in turns["1"]]
    print(
        f"\n{cpu_name()}, {usable_cores()} cores; {options.bundle.name}; texts of 8 to {options.longest} ",
        end="",
    )
    print(f"tokens; {options.rounds} rounds of {options.seconds} s in turns\n")
    print("| clients | texts/s | times one client | p99 ms | front ms | engine ms | padding | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for count, found in turns.items():
        cells = [
            spread([load.per_s for load in found]),
            spread(ratios(found, one), 2),
            spread([load.p99_ms for load in found], 1),
            spread([load.front_ms for load in found], 2),
            spread([load.engine_ms for load in found], 2),
            spread([load.padding for load in found], 3),
            str(sum(load.failed for load in found)),
        ]
        print(f"| {count} | {' | '.join(cells)} |")
    gained = median(ratios(turns[str(MANY)], one))
    failed = sum(load.failed for found in turns.values() for load in found)
    holds = gained >= LIMIT and not failed
    print(f"\n{MANY} clients : one, at least {LIMIT:g}: {gained:.2f} {'PASS' if holds else 'FAIL'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
