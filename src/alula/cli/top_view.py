"""What `alula top` draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from alula.watching import GpuFigures, ModelFigures, ServerFigures, Unreachable

WIDEST = 160
"""Columns where there is no terminal to fit into."""
HISTORY = 60
BLOCKS = " ▁▂▃▄▅▆▇█"
GOOD = {"ready": "bold green", "starting": "bold yellow", "draining": "bold yellow"}
NOTHING = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A figure of every model; those with a higher `rank` go first where a terminal is narrow."""

    title: str
    rank: int
    cell: Callable[[ModelFigures], str]


def seconds(value: float | None) -> str:
    """A time with the digits that matter: 850 us, 9.3 ms, 1.24 s, 3h05."""
    if value is None:
        return NOTHING
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    if value < 1:
        return f"{value * 1e3:.{0 if value >= 0.1 else 1}f} ms"
    return f"{value:.2f} s" if value < 100 else lasting(value)


def lasting(value: float) -> str:
    """A long time: 2m05, 3h05, 4d02."""
    for unit, size, below, part in (("d", 86_400, 3_600, "h"), ("h", 3_600, 60, "m"), ("m", 60, 1, "s")):
        if value >= size:
            return f"{value // size:.0f}{unit}{value % size // below:02.0f}{part}"
    return f"{value:.0f}s"


def rate(value: float) -> str:
    """A number in a second."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def amount(value: float) -> str:
    """Bytes: 512 MB, 3.2 GB."""
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def share(value: float | None) -> str:
    """Per cent."""
    return NOTHING if value is None else f"{value:.0%}"


def number(value: float | None) -> str:
    """A mean."""
    return NOTHING if value is None else f"{value:.1f}"


def line(values: Sequence[float]) -> str:
    """A curve of one line, from nought to its highest value."""
    highest = max(values, default=0.0)
    if not highest:
        return BLOCKS[1] * len(values)
    return "".join(BLOCKS[max(1, round(value / highest * (len(BLOCKS) - 1)))] for value in values)


BATCHED = (
    Column(title="batch", rank=2, cell=lambda model: number(model.batch)),
    Column(title="padding", rank=7, cell=lambda model: share(model.padding)),
)
WRITTEN = (
    Column(title="written/s", rank=1, cell=lambda model: rate(model.written)),
    Column(title="1st token", rank=3, cell=lambda model: seconds(model.first_p50_s)),
    Column(title="next", rank=5, cell=lambda model: seconds(model.next_p50_s)),
    Column(title="run+wait", rank=4, cell=lambda model: f"{model.running:.0f}+{model.waiting:.0f}"),
    Column(title="cache", rank=6, cell=lambda model: share(model.cache)),
)


def columns(models: Sequence[ModelFigures], width: int) -> list[Column]:
    """What is shown of these models in so many columns; what none of them has is not."""
    shown = [
        Column(title="model", rank=0, cell=lambda model: model.name),
        Column(title="req/s", rank=0, cell=lambda model: rate(model.requests)),
        Column(title="p50", rank=0, cell=lambda model: seconds(model.p50_s)),
        Column(title="p99", rank=0, cell=lambda model: seconds(model.p99_s)),
        Column(title="queue", rank=0, cell=lambda model: f"{model.queued:.0f}"),
        Column(title="waited p99", rank=3, cell=lambda model: seconds(model.queue_p99_s)),
        *(BATCHED if any(model.batch is not None for model in models) else ()),
        Column(title="tokens/s", rank=1, cell=lambda model: rate(model.read)),
        *(WRITTEN if any(model.cache is not None for model in models) else ()),
    ]
    while sum(_wide(column, models) for column in shown) > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    return shown


def _wide(column: Column, models: Sequence[ModelFigures]) -> int:
    # Figures grow and shrink from look to look; so wide most of them are, and no column comes and goes for it.
    least = 0 if column.title == "model" else 7
    return 2 + max(least, len(column.title), *(len(column.cell(model)) for model in models), 0)


@dataclass(kw_only=True, slots=True)
class View:
    """The last look, and the curve of those before it."""

    url: str
    look: ServerFigures | None = None
    gone: str = ""
    requests: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    slowest: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def seen(self, look: ServerFigures | Unreachable) -> View:
        """The view with one more look; where nobody answered, the one before stays."""
        if isinstance(look, Unreachable):
            self.gone = str(look)
            return self
        self.look, self.gone = look, ""
        self.requests.append(look.requests)
        self.slowest.append(look.p99_s or 0.0)
        return self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self._parts(options.max_width))

    def _parts(self, width: int) -> Iterator[RenderableType]:
        if self.look is None:
            yield Text(f"alula top {self.url}: looking ...")
            return
        yield from self._head(self.look)
        yield Text()
        yield _table(self.look.models, width)
        yield Text()
        yield from _machine(self.look)

    def _head(self, look: ServerFigures) -> Iterator[Text]:
        status, style = (
            ("gone", "bold red") if self.gone else (look.status, GOOD.get(look.status, "bold red"))
        )
        up = "" if look.up_s is None else f"  up {lasting(look.up_s)}"
        reason = self.gone or look.reason
        yield Text.assemble(("alula ", "bold"), self.url, "  ", (status, style), up, reason and f"  {reason}")
        yield Text.assemble(
            (f"{rate(look.requests)} req/s", "bold"),
            f"  p50 {seconds(look.p50_s)}  p99 {seconds(look.p99_s)}  {look.active:.0f} active",
            *_bad(look),
        )
        if len(self.requests) > 1:
            yield _curve("req/s", self.requests, "cyan", rate(max(self.requests)))
            yield _curve("p99", self.slowest, "magenta", seconds(max(self.slowest)))


def _curve(what: str, values: Sequence[float], style: str, highest: str) -> Text:
    return Text.assemble((f"{what:<6}", "dim"), (line(values), style), (f"  at most {highest}", "dim"))


def _bad(look: ServerFigures) -> Iterator[tuple[str, str]]:
    """What should be nought, shown where it is not."""
    for what, value, style in (
        ("failed/s", look.failed, "bold red"),
        ("rejected/s", look.rejected, "bold yellow"),
        ("refused/s", look.refused, "yellow"),
        ("left/s", look.left, "yellow"),
        ("degraded/s", look.degraded, "bold yellow"),
    ):
        if value:
            yield (f"  {rate(value)} {what}", style)
    if look.restarts:
        yield (f"  {look.restarts:.0f} restarts", "bold red")


def _table(models: Sequence[ModelFigures], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    shown = columns(models, width)
    for column in shown:
        table.add_column(column.title, justify="left" if column.title == "model" else "right", no_wrap=True)
    for model in models:
        table.add_row(*(Text(column.cell(model)) for column in shown))
    return table


def _machine(look: ServerFigures) -> Iterator[Text]:
    if look.processes:
        told = (f"{each.name} {each.cores:.2f} cores {amount(each.memory_bytes)}" for each in look.processes)
        yield Text("   ".join(told))
    for gpu in look.gpus:
        yield Text(f"GPU {gpu.name}  {share(gpu.busy)} busy  {amount(gpu.used_bytes)}{_of(gpu)}")


def _of(gpu: GpuFigures) -> str:
    return (
        f" of {amount(gpu.total_bytes)} ({gpu.used_bytes / gpu.total_bytes:.0%})" if gpu.total_bytes else ""
    )
