"""What is measured of HunyuanOCR, who takes part, what has to hold, and the tables: data and pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

REFERENCE, BF16, COMPILED = "torch-fp32", "torch-bf16", "torch-compile-bf16"
OURS, VAST, EXACT = "alula-fp16", "alula-fp16-vast", "alula-fp32"
TITLES: Mapping[str, str] = {
    REFERENCE: "PyTorch fp32, eager",
    BF16: "PyTorch bf16, eager",
    COMPILED: "PyTorch bf16, torch.compile, CUDA graphs",
    OURS: "alula fp16",
    VAST: "alula fp16, vast pages",
    EXACT: "alula fp32",
}
PARTS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    OURS: (("vision-pages", "decoder", "fp16"), ("vision-pages", "decoder-steps", "fp16")),
    VAST: (("vision-vast", "decoder", "fp16"), ("vision-vast", "decoder-steps", "fp16")),
    EXACT: (("vision-parity", "decoder-parity", "fp32"),),
}
"""The parts that each of ours may be made of, the first that are all built; where prompts go in token by token, the
decoder's second profile was too much for the time there was."""

PEERS = (REFERENCE, BF16, COMPILED)
Kind = Literal["vision", "write", "read", "follow"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is asked of whom; `size` is the height and width of a page, `steps` what counts of an answer."""

    name: str
    kind: Kind
    who: tuple[str, ...]
    size: tuple[int, int]
    count: int = 1
    tokens: int = 1
    rounds: int = 7
    calls: int = 3
    limit_s: float = 90.0

    @property
    def message(self) -> dict[str, Any]:
        """The question of one turn."""
        asked: dict[str, Any] = {"do": self.kind, "size": list(self.size)}
        if self.kind == "vision":
            return {**asked, "unseen": 1, "calls": self.calls}
        return {**asked, "tokens": self.tokens} | ({} if self.kind == "follow" else {"count": self.count})


def cases(*, tiny: bool, rounds: int) -> tuple[Case, ...]:
    """In the order of what matters, since the machine may go away; small ones for a CPU."""
    tokens, steps, most = (6, 6, min(rounds, 5)) if tiny else (256, 49, min(rounds, 5))

    def page(side: int) -> tuple[int, int]:
        # A small model's patches are 4 pixels, two of which are a step.
        return (side // 80 * 8,) * 2 if tiny else (side, side)

    def read(name: str, side: int, who: tuple[str, ...], count: int) -> Case:
        return Case(name=name, kind="read", who=who, size=page(side), count=count, tokens=tokens, rounds=most)

    def decode(count: int) -> Case:
        return Case(
            name=f"decode {count}",
            kind="write",
            who=everybody,
            size=page(640),
            count=count,
            tokens=steps,
            rounds=rounds,
        )

    def vision(side: int, who: tuple[str, ...]) -> Case:
        return Case(name=f"vision {side}", kind="vision", who=who, size=page(side), rounds=most)

    everybody = (*PEERS, OURS)
    largest = (216, 408) if tiny else (2160, 4096)
    return (
        Case(
            name="errors",
            kind="follow",
            who=(*everybody, EXACT),
            size=page(640),
            tokens=6 if tiny else 64,
        ),
        read("page 640", 640, everybody, 1),
        read("pages 640 x 8", 640, (OURS,), 8),
        *(decode(count) for count in (1, 8, 32)),
        *(vision(side, everybody) for side in (640, 320, 960, 1280)),
        vision(2048, (*PEERS, VAST)),
        read("pages 1280 x 4", 1280, (OURS,), 4),
        replace(read("page 4K", 640, (VAST,), 1), size=largest, tokens=tokens // 4),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One limit: what was found, None where it was not measured, and whether it holds."""

    name: str
    limit: str
    found: float | None
    holds: bool


Results = Mapping[str, Any]


def seconds(case: Mapping[str, Any], who: str, key: str) -> list[float]:
    """One number for each round: of what is a list, its median."""
    turns = case.get("turns", {}).get(who, [])
    return [median(turn[key]) if isinstance(turn[key], list) else float(turn[key]) for turn in turns]


def ratio(case: Mapping[str, Any], slower: str, faster: str, key: str) -> float | None:
    """How many times as fast, the median of the ratios within rounds."""
    pairs = zip(seconds(case, slower, key), seconds(case, faster, key), strict=False)
    found = [a / b for a, b in pairs]
    return median(found) if found else None


def verdicts(results: Results) -> list[Verdict]:
    """The limits of the issue, set before any run; what was not measured does not hold."""
    got: Mapping[str, Any] = results.get("cases", {})
    page, eight, four = (got.get(name, {}) for name in ("page 640", "pages 640 x 8", "pages 1280 x 4"))
    one, many = seconds(page, OURS, "page_s"), seconds(eight, OURS, "page_s")
    first = seconds(page, OURS, "first_s")
    memory = [max(seconds(page, who, "taken"), default=0.0) for who in (OURS, REFERENCE)]
    taken = seconds(four, OURS, "taken")
    vast = got.get("page 4K", {})
    errors = got.get("errors", {}).get("errors", {})
    return [
        _at_least("one page, times PyTorch fp32", ratio(page, REFERENCE, OURS, "page_s"), 8.0),
        _at_least(
            "throughput of 8 pages, times one's",
            8 * median(one) / median(many) if one and many else None,
            3.0,
        ),
        _at_most("first token, ms", 1e3 * median(first) if first else None, 80.0),
        _at_most("device memory, of PyTorch fp32's", memory[0] / memory[1] if all(memory) else None, 0.5),
        _at_most("4 pages of 1280 x 1280, GiB", max(taken) / 2**30 if any(taken) else None, 24.0),
        _at_least("a 4K page read, rounds", float(len(seconds(vast, VAST, "page_s"))) or None, 1.0),
        _at_most("logits fp32, largest difference", _of(errors, EXACT, "largest"), 1e-4),
        _at_most("tokens fp32 that are others, no ties", _of(errors, EXACT, "others"), 0.0),
        _at_most("vision rows fp16, relative error", _of(errors, OURS, "rows"), 2e-2),
        _at_most("logits fp16, relative error", _of(errors, OURS, "relative"), 2e-2),
    ]


def _of(errors: Mapping[str, Any], who: str, key: str) -> float | None:
    found = errors.get(who, {}).get(key)
    return None if found is None else float(found)


def _at_least(name: str, found: float | None, limit: float) -> Verdict:
    return Verdict(name=name, limit=f">= {limit:g}", found=found, holds=found is not None and found >= limit)


def _at_most(name: str, found: float | None, limit: float) -> Verdict:
    return Verdict(name=name, limit=f"<= {limit:g}", found=found, holds=found is not None and found <= limit)


def markdown(results: Results) -> str:
    """Everything as tables: limits, loading, errors, then each case."""
    lines = ["| what | limit | found | |", "|---|---|---|---|"]
    for each in verdicts(results):
        shown = "not measured" if each.found is None else f"{each.found:.4g}"
        lines.append(f"| {each.name} | {each.limit} | {shown} | {'PASS' if each.holds else 'FAIL'} |")
    lines += ["", "| contender | load s | MiB when loaded | remark |", "|---|---|---|---|"]
    for who, loaded in results.get("loaded", {}).items():
        remark = loaded.get("failed") or loaded.get("kind", "")
        numbers = (
            f"{loaded.get(key, float('nan')) * by:.5g}" for key, by in (("load_s", 1), ("taken", 2**-20))
        )
        lines.append(f"| {TITLES[who]} | {' | '.join(numbers)} | {remark} |")
    lines += ["", "| part | seconds | MB | nodes |", "|---|---|---|---|"]
    for name, built in results.get("built", {}).items():
        said = built.get("failed") or ", ".join(f"{k} {v:.1f}" for k, v in built["seconds"].items())
        lines.append(
            f"| {name} | {said} | {built.get('engine_bytes', 0) / 1e6:.0f} | {built.get('nodes', '')} |"
        )
    for name, case in results.get("cases", {}).items():
        lines += ["", f"**{name}**", "", *_table(case)]
    return "\n".join(lines) + "\n"


_SHOWN: Mapping[str, Sequence[str]] = {
    "vision": ("seconds",),
    "write": ("first_s", "steps_s"),
    "read": ("page_s", "first_s", "prepared_s", "seen_s"),
    "follow": (),
}
_NAMES: Mapping[str, str] = {
    "seconds": "ms",
    "first_s": "first token ms",
    "steps_s": "step ms",
    "page_s": "all pages ms",
    "prepared_s": "of it preparing ms",
    "seen_s": "of it looking ms",
}


def _table(case: Mapping[str, Any]) -> list[str]:
    if case["kind"] == "follow":
        lines = ["| contender | rows | logits | largest | other tokens | ties |", "|---|---|---|---|---|---|"]
        for who, error in case.get("errors", {}).items():
            offs = (f"{error[key]:.2e}" for key in ("rows", "relative", "largest"))
            lines.append(f"| {TITLES[who]} | {' | '.join(offs)} | {error['others']} | {error['ties']} |")
        return lines + _failures(case)
    keys = _SHOWN[case["kind"]]
    heads = [_NAMES[key] for key in keys]
    last = "tokens/s" if case["kind"] == "write" else "MiB"
    lines = [
        f"| contender | {' | '.join(heads)} | times PyTorch fp32 | {last} |",
        "|---" * (len(keys) + 3) + "|",
    ]
    main = "steps_s" if case["kind"] == "write" else keys[0]
    for who in case.get("turns", {}):
        cells = []
        for key in keys:
            found = [1e3 * each for each in seconds(case, who, key)]
            cells.append(f"{median(found):.4g} ({min(found):.4g}-{max(found):.4g})")
        times = ratio(case, REFERENCE, who, main)
        cells.append("" if times is None else f"{times:.2f}")
        if last == "MiB":
            cells.append(f"{max(seconds(case, who, 'taken')) / 2**20:.0f}")
        else:
            cells.append(f"{case['count'] / median(seconds(case, who, main)):.0f}")
        lines.append(f"| {TITLES[who]} | {' | '.join(cells)} |")
    return lines + _failures(case)


def _failures(case: Mapping[str, Any]) -> list[str]:
    return [f"| {TITLES[who]} | failed: {why} |" for who, why in case.get("failed", {}).items()]
