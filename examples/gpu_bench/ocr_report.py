"""What has to hold of HunyuanOCR on a GPU, and the tables: pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpu_bench.ocr_cases import ALONE, EXACT, LARGE, OURS, REFERENCE, TITLES, TOGETHER, VAST


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


def ratio(case: Mapping[str, Any], slower: str, faster: str, key: str | tuple[str, str]) -> float | None:
    """How many times as fast, the median of the ratios within rounds; of two keys the first is the slower one's."""
    keys = (key, key) if isinstance(key, str) else key
    pairs = zip(seconds(case, slower, keys[0]), seconds(case, faster, keys[1]), strict=False)
    found = [a / b for a, b in pairs]
    return median(found) if found else None


def verdicts(results: Results) -> list[Verdict]:
    """The limits of the issue, set before any run; what was not measured does not hold."""
    got: Mapping[str, Any] = results.get("cases", {})
    page, eight, four = (got.get(name, {}) for name in ("page 640", "pages 640 x 8", "pages 1280 x 4"))
    one, many = seconds(page, OURS, "page_s"), seconds(eight, OURS, "page_s")
    first = seconds(page, OURS, "first_s")
    memory = {
        who: max(seconds(page, who, "taken"), default=0.0) / of
        for who in (OURS, ALONE)
        if (of := _taken(page))
    }
    taken = seconds(four, LARGE, "taken")
    vast = got.get("page 4K", {})
    stream = ratio(got.get("stream 640", {}), OURS, OURS, ("ready_s", "pool_s"))
    errors, exact = (got.get(name, {}).get("errors", {}) for name in ("errors", "parity"))
    return [
        _at_least("one page, times PyTorch fp32", ratio(page, REFERENCE, OURS, "page_s"), 8.0),
        _at_least(
            "throughput of 8 pages, times one's",
            8 * median(one) / median(many) if one and many else None,
            3.0,
        ),
        _at_most("first token, ms", 1e3 * median(first) if first else None, 80.0),
        *(
            _at_most(f"{TITLES[who]}: device memory, of PyTorch fp32's", memory.get(who) or None, 0.5)
            for who in (OURS, ALONE)
        ),
        _at_most("4 pages of 1280 x 1280, GiB", max(taken) / 2**30 if any(taken) else None, 24.0),
        _at_least("a 4K page read, rounds", float(len(seconds(vast, VAST, "page_s"))) or None, 1.0),
        _at_least("pages a second from files, of those cut up before", stream, 0.95),
        *(
            _at_most(f"{TITLES[who]}: {what}", _of(exact, who, key), limit)
            for who in (EXACT, TOGETHER)
            for what, key, limit in (
                ("largest difference of a logit", "largest", 1e-4),
                ("tokens that are others, no ties", "others", 0.0),
            )
        ),
        _at_most("vision rows fp16, relative error", _of(errors, OURS, "rows"), 2e-2),
        _at_most("logits fp16, relative error", _of(errors, OURS, "relative"), 2e-2),
    ]


def _taken(page: Mapping[str, Any]) -> float:
    """What PyTorch takes of the device for a page; 0 where that was not measured."""
    return max(seconds(page, REFERENCE, "taken"), default=0.0)


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
    "stream": ("pool_s", "ready_s", "waited_s"),
    "follow": (),
}
_NAMES: Mapping[str, str] = {
    "seconds": "ms",
    "first_s": "first token ms",
    "steps_s": "step ms",
    "page_s": "all pages ms",
    "prepared_s": "of it preparing ms",
    "seen_s": "of it looking ms",
    "pool_s": "from files ms",
    "ready_s": "cut up before ms",
    "waited_s": "waited for pages ms",
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
    last = {"write": "tokens/s", "stream": "pages/s"}.get(case["kind"], "MiB")
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
        elif last == "pages/s":
            pages = zip(seconds(case, who, "pages"), seconds(case, who, "pool_s"), strict=True)
            cells.append(f"{median(count / each for count, each in pages):.1f}")
        else:
            cells.append(f"{case['count'] / median(seconds(case, who, main)):.0f}")
        lines.append(f"| {TITLES[who]} | {' | '.join(cells)} |")
    return lines + _failures(case)


def _failures(case: Mapping[str, Any]) -> list[str]:
    return [f"| {TITLES[who]} | failed: {why} |" for who, why in case.get("failed", {}).items()]
