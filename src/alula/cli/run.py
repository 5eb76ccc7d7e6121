"""`alula run`: one answer, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from alula.bundles import Bundle
from alula.cli.console import Phases, print_json, print_rows
from alula.cli.feeds import check_feeds, show_outputs
from alula.cli.writing import Writing, check_writing, write
from alula.codecs import (
    Row,
    TextCodec,
    answers,
    classes,
    entities,
    fit,
    relevance,
    row_outputs,
    vectors,
    within,
)
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Array
from alula.core.words import TENSORS


def run(
    bundle: Path = typer.Argument(help="A bundle's folder.", show_default=False),
    text: list[str] = typer.Option([], help="A text; for reranking a passage; can be repeated."),
    query: str | None = typer.Option(None, help="For reranking: what the texts are ranked by."),
    question: str | None = typer.Option(None, help="For question answering."),
    context: str | None = typer.Option(None, help="For question answering: where the answer is looked for."),
    image: list[Path] = typer.Option(
        [],
        help="An image's file, for models that read images, with --prompt where they write; can be repeated.",
    ),
    prompt: list[str] = typer.Option(
        [], help='For models that write text: what to answer, "-" for stdin; can be repeated.'
    ),
    chat: bool | None = typer.Option(
        None,
        "--chat/--no-chat",
        help="Whether --prompt is a message of a chat; by default where the checkpoint has a template.",
        show_default=False,
    ),
    system: str | None = typer.Option(None, help="What a chat begins with."),
    max_tokens: int | None = typer.Option(None, help="The most tokens of an answer; by default what fits."),
    temperature: float | None = typer.Option(
        None,
        help="0 takes the best token; by default as generation_config.json has it, 0 if it says nothing.",
    ),
    top_p: float | None = typer.Option(None, help="Draw from the best that are this probable together."),
    top_k: int | None = typer.Option(None, help="Draw from so many of the best."),
    seed: int | None = typer.Option(None, help="Draw the same way each time."),
    stop: list[str] = typer.Option([], help="End before this text; can be repeated."),
    feeds: Path | None = typer.Option(
        None, metavar="FILE", help="For ONNX files: arrays by input, as .npz, or .npy for a single input."
    ),
    out: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Write what --feeds gives as .npz, or draw a detector's boxes into an image.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of a table."),
) -> int:
    """Run a bundle once on texts, prompts, images or arrays given on the command line."""
    opened = Bundle.open(bundle)
    sees = opened.model.sees
    reading = any([text, query, question, context, image and not sees])
    writing = Writing(
        prompts=prompt,
        images=image if sees else (),
        system=system,
        chat=chat,
        body={
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "stop": stop or None,
        },
    )
    if opened.model.writes or writing.given:
        check_writing(opened, writing, others=reading or feeds is not None or out is not None)
        return write(opened, writing, as_json=as_json)
    if opened.model.task == TENSORS or feeds or (out and not image):
        check_feeds(opened, feeds, out, others=reading)
        assert feeds is not None
        show_outputs(opened, feeds, out, as_json=as_json)
        return 0
    if not opened.model.reads_text or image:
        show(
            opened.model,
            about_images(opened, image, any([text, query, question, context]), out),
            as_json=as_json,
        )
        return 0
    profile = opened.engine("encoder").plan.profile
    spec = within(opened.model, profile)
    codec = TextCodec.open(opened.tokenizer, spec)
    given = Given(text, query, question, context)
    rows = given.rows(codec)

    from alula.engines import backend  # noqa: PLC0415 - loads a runtime
    from alula.local import local_engine  # noqa: PLC0415

    with Phases().phase("load the engine"):
        engine = local_engine(opened)
        session = backend(engine.backend).open(engine)
    with closing(session):
        step = profile.most("batch", {"length": max(len(row.ids) for row in rows)})
        batches = [rows[start : start + step] for start in range(0, len(rows), step)]
        outputs = [
            one
            for batch in batches
            for one in row_outputs(session.run(fit(batch, spec, profile)), batch, spec)
        ]
    show(spec, _READ[spec.task](outputs, rows, given, spec), as_json=as_json)
    return 0


def show(spec: ModelSpec, results: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """The answers, as a table or as JSON."""
    if as_json:
        print_json("run", results, model=spec.name, task=spec.task)
    else:
        print_rows(f"{spec.name}, {spec.task}", list(results[0]) if results else [""], _cells(results))


def about_images(
    bundle: Bundle, images: Sequence[Path], texts: bool, out: Path | None = None
) -> list[dict[str, Any]]:
    """Answers of a model that reads images, which takes nothing else, and nothing else takes."""
    task = bundle.model.task
    if bundle.model.reads_text:
        raise InputError(f"--image is not for task {task!r}")
    if texts or not images:
        raise InputError(f"task {task!r} takes --image FILE, and no texts")
    from alula.cli.images import answers_of  # noqa: PLC0415 - texts need no Pillow

    return answers_of(bundle, images, out)


class Given:
    """The texts of the command line, held to what the task takes."""

    def __init__(
        self, text: Sequence[str], query: str | None, question: str | None, context: str | None
    ) -> None:
        self.text = list(text)
        self.query = query
        self.question = question
        self.context = context

    def rows(self, codec: TextCodec) -> list[Row]:
        """The texts as rows; what the task does not take is refused, and so is what it misses."""
        task = codec.spec.task
        options = {"--query": self.query, "--question": self.question, "--context": self.context}
        wanted = {"reranking": ("--query",), "question-answering": ("--question", "--context")}.get(task, ())
        for name, value in options.items():
            if (value is None) == (name in wanted):
                raise InputError(f"{name} is {'missing' if value is None else 'not for'} task {task!r}")
        if bool(self.text) == (task == "question-answering"):
            raise InputError(f"--text is {'not for' if self.text else 'missing for'} task {task!r}")
        if self.question is not None and self.context is not None:
            return [codec.encode_pair(self.question, self.context, only_second=True)]
        if self.query is not None:
            return [codec.encode_pair(self.query, text) for text in self.text]
        return [codec.encode(text) for text in self.text]


Reader = Callable[[Sequence[Mapping[str, Array]], Sequence[Row], Given, ModelSpec], list[dict[str, Any]]]


def _embeddings(
    outputs: Sequence[Mapping[str, Array]], rows: Sequence[Row], given: Given, spec: ModelSpec
) -> list[dict[str, Any]]:
    found = [vectors({"embedding": one["embedding"][None]})[0] for one in outputs]
    return [
        {"text": text, "tokens": len(row.ids), "embedding": [round(float(value), 6) for value in vector]}
        for text, row, vector in zip(given.text, rows, found, strict=True)
    ]


def _classes(
    outputs: Sequence[Mapping[str, Array]], rows: Sequence[Row], given: Given, spec: ModelSpec
) -> list[dict[str, Any]]:
    return [
        {"text": text, **asdict(scored)}
        for text, one in zip(given.text, outputs, strict=True)
        for scored in classes(one, spec)
    ]


def _ranking(
    outputs: Sequence[Mapping[str, Array]], rows: Sequence[Row], given: Given, spec: ModelSpec
) -> list[dict[str, Any]]:
    scored = [
        {"index": index, "score": relevance(one, spec), "text": text}
        for index, (text, one) in enumerate(zip(given.text, outputs, strict=True))
    ]
    return sorted(scored, key=lambda row: -float(str(row["score"])))


def _entities(
    outputs: Sequence[Mapping[str, Array]], rows: Sequence[Row], given: Given, spec: ModelSpec
) -> list[dict[str, Any]]:
    return [
        asdict(entity)
        for text, row, one in zip(given.text, rows, outputs, strict=True)
        for entity in entities(one, row, text, spec)
    ]


def _spans(
    outputs: Sequence[Mapping[str, Array]], rows: Sequence[Row], given: Given, spec: ModelSpec
) -> list[dict[str, Any]]:
    return [asdict(answer) for answer in answers(outputs[0], rows[0], given.context or "")]


_READ: Mapping[str, Reader] = {
    "embeddings": _embeddings,
    "sequence-classification": _classes,
    "reranking": _ranking,
    "token-classification": _entities,
    "question-answering": _spans,
}


def _cells(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [[_cell(value) for value in result.values()] for result in results]


def _cell(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], list):
        if all(isinstance(number, int) for number in value[0]):
            return " ".join(",".join(map(str, point)) for point in value)
        return f"{len(value)} x {len(value[0])} numbers"
    if isinstance(value, list):
        return f"[{', '.join(f'{item:.4f}' for item in value[:4])}, ... {len(value)} numbers]"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
