"""`alula ocr`: pages of images and PDFs, and subtitles of videos, read by a model."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import typer

from alula.cli.console import Phases, print_json, print_rows
from alula.core.errors import InputError
from alula.core.machine import MOST_THREADS
from alula.core.progress import Note, Progress, Silent
from alula.core.refused import is_full
from alula.documents import TASKS, Page, Scan, Task
from alula.ocr import Ask, Reader, check, open_reader
from alula.ocr.loading import Lost, Selection, Taking, kind_of
from alula.ocr.output import (
    FORMATS,
    Log,
    asked,
    draw,
    keep_drawings_apart,
    places,
    remove_left,
    usual_format,
    writing,
)
from alula.ocr.pool import Taken, taken
from alula.ocr.reader import MAX_TOKENS, PICTURES
from alula.ocr.stream import Done, read_pages
from alula.ocr.subtitles import joined, still, with_subtitles

MOST_JOBS = 4
"""Processes that open files, where nothing is said: one of two cores, and no more than this."""


@dataclass(slots=True)
class Summary:
    """What came of one file."""

    file: str
    output: str = ""
    pages: int = 0
    failed: int = 0
    notices: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    skipped: bool = False
    error: str = ""
    ours: bool = False

    def add(self, page: Page, scan: Scan | None) -> None:
        """Count what is said of one page; `ours` says that one was opened and not read."""
        self.notices.update(notice.code for notice in page.notices)
        if page.noticed("failed"):
            self.failed += 1
            self.ours = self.ours or scan is not None


def ocr(
    files: list[str] = typer.Argument(help="Images, PDFs and videos.", show_default=False),
    model: Path = typer.Option(
        ..., "--model", "-m", help="The folder of a model that reads pages.", show_default=False
    ),
    task: str = typer.Option("text", help=f"What to read: {', '.join(TASKS)}."),
    fields: str = typer.Option("", help='For task fields: their names, such as "name,date,total".'),
    to: str = typer.Option("", help="For task translate: the language."),
    question: str = typer.Option("", help="For task ask: what to answer."),
    prompt: str = typer.Option("en", help="The language of the model's prompt: en or zh."),
    format: str | None = typer.Option(
        None, help=f"What to write: {', '.join(FORMATS)}; by default what suits the task."
    ),
    pages: str = typer.Option("", help="Which pages of every file: 1-3,7,10-."),
    password: str | None = typer.Option(None, help="Of locked PDFs."),
    dpi: float = typer.Option(Taking().dpi, help="How finely PDFs are rendered."),
    every: float = typer.Option(
        Taking().every_s, help="Seconds between the pictures of a video that are read."
    ),
    straighten: bool = typer.Option(
        False, "--straighten", help="Turn skewed pages level before they are read."
    ),
    denoise: bool = typer.Option(
        False, "--denoise", help="Take the specks off noisy pages before they are read."
    ),
    read_blurred: bool = typer.Option(False, "--read-blurred", help="Read pages that are too blurred, too."),
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="A folder for the results, or for one file's a file; - is standard output.",
        show_default=False,
    ),
    boxes: bool = typer.Option(
        False, "--draw", help="Also write each page with its boxes, as NAME-PAGE.jpg beside its result."
    ),
    again: bool = typer.Option(
        False, "--again", help="Read files whose results are in the folder already, too."
    ),
    max_tokens: int = typer.Option(MAX_TOKENS, help="The most tokens of a page's answer."),
    jobs: int = typer.Option(
        0, help="Processes that open files ahead; by default one for two cores, at most 4."
    ),
    threads: int = typer.Option(0, help="Threads that the model takes; 0 for all cores."),
    as_json: bool = typer.Option(False, "--json", help="Print what came of each file as one JSON document."),
) -> int:
    """Read pages: text, Markdown, tables, boxes, fields. One file's fault does not lose the others."""
    ask = Ask(
        task=_one_of(task, TASKS, "--task"),
        fields=tuple(name.strip() for name in fields.split(",")) if fields else (),
        to=to,
        question=question,
        language=_language(prompt),
        max_tokens=max_tokens,
    )
    videos = frozenset(filter(_is_video, files))
    form = _one_of(format, FORMATS, "--format") if format else usual_format(ask.task, video=bool(videos))
    _check_videos(videos, files, ask.task, form, pages)
    selection = Selection.parse(pages, "--pages") if pages else Selection()
    taking = Taking(
        password=password,
        dpi=dpi,
        every_s=every,
        straighten=straighten,
        denoise=denoise,
        skip=not read_blurred and ask.task not in PICTURES,
    )
    if not 0 <= jobs <= MOST_THREADS or not 0 <= threads <= MOST_THREADS:
        raise InputError(f"--jobs is {jobs} and --threads {threads}; expected 0..{MOST_THREADS} of each")
    if boxes and videos:
        raise InputError("--draw is for pages of images and PDFs; a video has none")
    if output == Path("-"):
        output = None
    if output is None:
        _check_standard_output(form, files, as_json=as_json, boxes=boxes)
    goals = dict(zip(files, places(files, output, form), strict=True))
    if boxes:
        keep_drawings_apart(goals)
    shown = Phases() if output is not None or not sys.stdout.isatty() else Silent()
    with shown.phase("load the model"):
        reader = with_subtitles(open_reader(model, threads=threads))
    with closing(reader):
        check(reader, ask)
        run = _Run(
            reader=reader,
            ask=ask,
            form=form,
            selection=selection,
            taking=taking,
            goals=goals,
            videos=videos,
            boxes=boxes,
        )
        log = None
        for left in remove_left(goals.values()):
            print(f"alula: {left}: removed, a run that was killed had left it", file=sys.stderr)
        if output is not None and output.is_dir():
            log = Log(output, asked(model, asdict(ask), form, asdict(selection), _seen(taking), boxes))
        order = {source: at for at, source in enumerate(goals)}
        summaries = sorted(
            run.all(log, again=again, jobs=jobs or usual_jobs(), shown=shown),
            key=lambda summary: order[summary.file],
        )
    if output is not None:
        _show(summaries, as_json=as_json)
    return code_of(summaries)


def _is_video(file: str) -> bool:
    """Whether it can be opened and is one; what cannot be opened is for the run to name."""
    try:
        return Path(file).is_file() and kind_of(file) == "video"
    except OSError:
        return False


def _check_standard_output(form: str, files: Sequence[str], *, as_json: bool, boxes: bool) -> None:
    """What has no place there."""
    if as_json:
        raise InputError("--json says what came of each file; the results themselves need a place: -o FOLDER")
    if boxes:
        raise InputError("--draw writes pages beside their results, which need a place: -o FOLDER")
    if form in {"html", "srt"} and len(files) > 1:
        raise InputError(
            f"{len(files)} files are {len(files)} documents of {form}, which need a place: -o FOLDER"
        )


def _seen(taking: Taking) -> dict[str, Any]:
    """What results depend on, of how pages are taken: a password opens a file or does not."""
    return {name: value for name, value in asdict(taking).items() if name != "password"}


def usual_jobs() -> int:
    """Processes that open files: one for two cores, at least one."""
    return max(1, min(MOST_JOBS, (os.cpu_count() or 1) // 2))


def code_of(summaries: Sequence[Summary]) -> int:
    """1 where a page was opened and could not be read, 2 where a file or a page of it could not be opened, else 0."""
    if any(summary.ours for summary in summaries):
        return 1
    return 2 if any(summary.error or summary.failed for summary in summaries) else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What one command does to all its files."""

    reader: Reader
    ask: Ask
    form: str
    selection: Selection
    taking: Taking
    goals: dict[str, Path | None]
    videos: frozenset[str]
    boxes: bool

    def all(self, log: Log | None, *, again: bool, jobs: int, shown: Progress) -> Iterator[Summary]:
        """Every file in order, those first whose results are there already."""
        left = []
        for source, goal in self.goals.items():
            if log is not None and goal is not None and not again and log.whole(source, goal):
                yield Summary(file=source, output=str(goal), skipped=True)
            else:
                left.append(source)
        if not left:
            return
        count = f"{len(left)} files" if len(left) > 1 else left[0]
        with (
            shown.phase(f"read {count}") as note,
            closing(taken(left, self.selection, self.taking, jobs=jobs)) as found,
        ):
            begun: dict[str, float] = {}
            outcomes = read_pages(still(_timed(found, begun)), self.reader, self.ask)
            for source, of_file in groupby(_noted(outcomes, note), key=lambda outcome: outcome.source):
                ended = [begun[source]]
                summary = self._written(source, _stamped(of_file, ended))
                summary.seconds = ended[-1] - begun.pop(source)
                goal = self.goals[source]
                if log is not None and goal is not None and not (summary.failed or summary.error):
                    log.keep(source, goal)
                yield summary

    def _written(self, source: str, outcomes: Iterator[Done | Lost]) -> Summary:
        """One file's pages; a result that cannot be written is that file's fault, but for a disk that is full."""
        try:
            return self._file(source, outcomes)
        except OSError as error:
            goal = self.goals[source]
            if goal is None:
                raise
            if is_full(error):
                said = (
                    f"{error.strerror}; make room and run the command again: whole results are not read again"
                )
                raise OSError(error.errno, said, str(goal)) from error
            said = f"{source}: its result cannot be written to {self.goals[source]}: {error.strerror}"
            print(f"alula: {said}", file=sys.stderr)
            return Summary(file=source, error=said)

    def _file(self, source: str, outcomes: Iterator[Done | Lost]) -> Summary:
        """One file's pages, written as they come; a file that cannot be opened leaves no result."""
        first = next(outcomes)
        goal = self.goals[source]
        if isinstance(first, Lost):
            print(f"alula: {first.message}", file=sys.stderr)
            return Summary(file=source, error=first.message)
        summary = Summary(file=source, output="" if goal is None else str(goal))
        with writing(goal, self.form, source, self.ask.task) as writer:
            done = _counted(_and_the_rest(first, outcomes), summary)
            if source in self.videos:
                for page in joined((each.page for each in done), gap_s=self.taking.every_s):
                    writer.add(page, None)
                    summary.pages += 1
            else:
                for each in done:
                    writer.add(each.page, each.scan)
                    summary.pages += 1
                    if self.boxes and goal is not None and each.scan is not None:
                        draw(each.page, each.scan, goal)
        return summary


def _counted(outcomes: Iterator[Done | Lost], summary: Summary) -> Iterator[Done]:
    """The pages of one file, counted, and named where one failed."""
    for outcome in outcomes:
        assert isinstance(outcome, Done)
        summary.add(outcome.page, outcome.scan)
        for code in ("failed", "repaired", "not-as-asked", "unplaced", "miscounted", "unsure"):
            for said in _said_of(outcome.page, code):
                print(f"alula: {outcome.placed(said)}", file=sys.stderr)
        yield outcome


def _said_of(page: Page, code: str) -> Iterator[str]:
    return (notice.message for notice in page.notices if notice.code == code)


def _check_videos(videos: Collection[str], files: Sequence[str], task: Task, form: str, pages: str) -> None:
    """Videos have subtitles, and nothing else has times."""
    others = [file for file in files if file not in videos and Path(file).is_file()]
    if form == "srt" and others:
        raise InputError(f"--format srt is for videos, and {others[0]} is none: choose another")
    if not videos:
        return
    first = next(iter(sorted(videos)))
    if task != "subtitle":
        raise InputError(f"{first} is a video, of which only subtitles are read: --task subtitle")
    if others:
        raise InputError(f"{first} is a video and {others[0]} is none: read them apart")
    if form in {"pdf", "html"}:
        raise InputError(f"--format {form} shows pages, and {first} has none: choose srt, text, md or json")
    if pages:
        raise InputError(
            f"--pages is {pages!r}, and {first} has none; --every says how often it is looked at"
        )


def _and_the_rest(first: Done | Lost, outcomes: Iterator[Done | Lost]) -> Iterator[Done | Lost]:
    yield first
    yield from outcomes


def _timed(found: Iterable[Taken], begun: dict[str, float]) -> Iterator[Taken]:
    """Note when the first page of each file is asked for; those of others may be under work."""
    asked = time.perf_counter()
    for one in found:
        begun.setdefault(one.source, asked)
        yield one
        asked = time.perf_counter()


def _stamped(outcomes: Iterator[Done | Lost], ended: list[float]) -> Iterator[Done | Lost]:
    """Note when a page is written: behind the last one of a file the first of the next is waited for."""
    for outcome in outcomes:
        yield outcome
        ended[:] = [time.perf_counter()]


def _noted(outcomes: Iterator[Done | Lost], note: Note) -> Iterator[Done | Lost]:
    """Say which page was read last, and how many a second; and once what the model was not taught."""
    begun, warned = time.perf_counter(), False
    for count, outcome in enumerate(outcomes, start=1):
        if isinstance(outcome, Done):
            if not warned and (said := next(_said_of(outcome.page, "untaught"), "")):
                print(f"alula: {said}", file=sys.stderr)
                warned = True
            pace = count / (time.perf_counter() - begun)
            note(f"{outcome.source}, page {outcome.page.index + 1}, {pace:.2g} pages a second")
        yield outcome


def _one_of(said: str, known: Sequence[Any], option: str) -> Any:
    if said not in known:
        raise InputError(f"{option} is {said!r}; expected one of: {', '.join(known)}")
    return said


def _language(said: str) -> Literal["en", "zh"]:
    language: Literal["en", "zh"] = _one_of(said, ("en", "zh"), "--prompt")
    return language


def _show(summaries: Sequence[Summary], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {**asdict(each), "notices": dict(each.notices), "seconds": round(each.seconds, 3)}
            for each in summaries
        ]
        for row in rows:
            del row["ours"]
        print_json("ocr", rows)
        return
    columns = ("file", "pages", "failed", "notices", "s", "result")
    print_rows("pages read", columns, [_row(summary) for summary in summaries])


def _row(summary: Summary) -> tuple[str, ...]:
    said = ", ".join(f"{code} {count}" for code, count in sorted(summary.notices.items()))
    if summary.skipped:
        return summary.file, "", "", "read already", "", summary.output
    if summary.error:
        return summary.file, "0", "", "no result", f"{summary.seconds:.2f}", ""
    return (
        summary.file,
        str(summary.pages),
        str(summary.failed or ""),
        said,
        f"{summary.seconds:.2f}",
        summary.output,
    )
