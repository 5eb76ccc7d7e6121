"""One template in jinja2: sandboxed, with what transformers offers it, and stopped where it does not end.

A template comes with the weights of somebody else, so it is a program that nobody here has read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from alula.core.errors import InputError

SECONDS = 5.0
"""How long a template may take; that of a long chat takes milliseconds."""
CHARACTERS = 1 << 24
"""The most that a template may write; no model reads as much."""

_LARGEST = 1000
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{6,}|\*)")

_ENDS: ContextVar[float] = ContextVar("_ENDS")


class _Refused(jinja2.TemplateError):
    """What a template says by raise_exception."""


class _Endless(jinja2.TemplateError):
    """A template that was stopped."""


class Template:
    """A compiled template and what can be read off it."""

    def __init__(self, program: jinja2.Template, tree: nodes.Template, name: str) -> None:
        self._program = program
        self._name = name
        self._variables = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        self.takes_parts = any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))

    def reads(self, variable: str) -> bool:
        """Whether the template looks at a variable."""
        return variable in self._variables

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises InputError with what the template says, or why it failed."""
        before = _ENDS.set(monotonic() + SECONDS)
        try:
            return _written(self._program.generate(**variables))
        except _Refused as error:
            raise InputError(f"the chat template of the model refuses: {error}") from error
        except Exception as error:  # a program can fail in any way
            raise InputError(f"{self._name} cannot be rendered: {_said(error)}") from error
        finally:
            _ENDS.reset(before)


def compiled(text: str, name: str) -> Template:
    """A template of this text; `name` is what errors call it."""
    environment = _environment()
    try:
        tree = environment.parse(text)
        program = environment.from_string(_Watched().visit(environment.parse(text)))
    except (jinja2.TemplateError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"{name}{line} is no template that can be read: {_said(error)}") from error
    return Template(program, tree, name)


def _written(pieces: Iterable[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        _check_size(size)
        kept.append(piece)
    return "".join(kept)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _is_content(looped: nodes.Node) -> bool:
    """Whether a loop goes over the parts of a message, by the name of what it goes over."""
    found = [looped, *looped.find_all((nodes.Name, nodes.Getattr, nodes.Getitem))]
    return any(
        (isinstance(node, nodes.Name) and node.name == "content")
        or (isinstance(node, nodes.Getattr) and node.attr == "content")
        or (isinstance(node, nodes.Getitem) and getattr(node.arg, "value", None) == "content")
        for node in found
    )


def _check_size(size: int) -> None:
    if size > CHARACTERS:
        raise _Endless(f"it makes texts or lists of more than {CHARACTERS} items")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Changes nothing it is given, and makes no value that fills the memory."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operator, if what it makes is of a size that templates have a use for."""
        sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
        if operator == "+":
            _check_size(sum(sizes))
        elif operator == "*":
            numbers = [value for value in (left, right) if isinstance(value, int)]
            _check_size(sum(sizes) * max(0, *numbers, 0))
        elif operator == "**" and max(abs(left), abs(right)) > _LARGEST:
            raise _Endless(f"{left} ** {right} is a larger number than templates need")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise _Endless(f"{left!r} makes a text that is wider than templates need")
        return super().call_binop(context, operator, left, right)

    def watch(self) -> None:
        """What runs in every round of a loop and every call of a macro."""
        if monotonic() > _ENDS.get():
            raise _Endless(f"it was stopped after {SECONDS:g} s")

    def joined(self, *values: Any) -> str:
        """What ~ makes of its sides."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)


class _Watched(NodeTransformer):
    """Puts the watch into loops and macros, and ~ where its sizes are seen."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named for the node
        return self._watched(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._watched(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _own_call("joined", node.nodes, node.lineno)

    def _watched(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own_call("watch", [], node.lineno), lineno=node.lineno))
        return node


def _own_call(name: str, values: list[nodes.Expr], line: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(called, values, [], None, None, lineno=line)


class _Generation(ext.Extension):
    """The block that marks what a model answers, which is for training: here its body is all of it."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        """Its body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Attributes(Namespace):
    """A namespace that holds no names which Python itself would look for."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        made = dict(*args[1:], **kwargs)
        for name in made:
            _check_name(name)
        Namespace.__init__(args[0], made)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no place for the name {name!r}")


def _environment() -> _Sandbox:
    """What transformers gives a template, and no more."""
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]  # text without end in one call
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "dict": _dict,
        "namespace": _Attributes,
    }
    return environment


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not jinja2's own, which writes < and & as HTML needs them."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
