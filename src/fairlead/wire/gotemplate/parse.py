"""Go templates as text, read into a tree: the subset that our chart is written in, and nothing that is not known.

A template is text with actions in `{{ … }}`; `{{-` and `-}}` take the white space beside them along. Known actions:
a pipeline, `if`, `with`, `range` (with `else`), `define`, variables and comments. Everything else is refused with file
and line, so that what is rendered here is what helm renders; `render` gives the tree its meaning.
Source: Go's documentation of text/template.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors


@dataclass(frozen=True, slots=True)
class Text:
    """What stands between actions."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: text, whole number, true, false or nil."""

    value: object


@dataclass(frozen=True, slots=True)
class Path:
    """A value and the fields taken from it, `.Values.a` or `$x.a`."""

    root: Pipe | str
    """`.`, a variable with its `$`, or a pipeline in parentheses."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name."""

    name: str


Operand = Literal | Path | Call


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands, each handing its value to the next as last argument; a variable may keep the last value."""

    commands: tuple[tuple[Operand, ...], ...]
    line: int
    variable: str = ""
    is_new: bool = False
    """True for `:=`: the variable belongs to this block."""


@dataclass(slots=True)
class Block:
    """`if`, `with` or `range`: what to do with a value, or without one."""

    keyword: str
    pipe: Pipe
    names: tuple[str, ...] = ()
    """For `range`: the variables of index and value, or none."""
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


Node = Text | Pipe | Block

_OPEN: Final = re.compile(r"\{\{(?P<trim>-\s)?")
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\\n]|\\.)*") | (?P<raw>`[^`]*`) | (?P<number>-?\d+(?![\w.]))
      | (?P<field>(?:\.[A-Za-z_]\w*)+) | (?P<dot>\.(?![\w.])) | (?P<variable>\$\w*) | (?P<word>[A-Za-z_]\w*)
      | (?P<mark>:=|=|\||\(|\)|,)
    )""",
    re.VERBOSE,
)
_CLOSE: Final = re.compile(r"\s*?(?P<trim>\s-)?\}\}")
_COMMENT: Final = re.compile(r"\{\{(?:-\s)?/\*.*?\*/(?P<right>\s-)?\}\}", re.DOTALL)
_CONSTANTS: Final = {"true": True, "false": False, "nil": None}
_BLOCKS: Final = frozenset({"if", "with", "range"})
_REFUSED: Final = frozenset({"block", "template", "break", "continue"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    is_joined: bool
    """Whether no space stands before it: `$x.a` is one thing, `$x .a` are two."""


@dataclass(frozen=True, slots=True)
class _Action:
    line: int
    tokens: tuple[_Token, ...]


def parse(name: str, text: str) -> dict[str, tuple[Node, ...]]:
    """Return the templates of a file: its own text under `name`, and what it defines under the names it gives them.

    Raises: ProtocolError (`TemplateUnknown`): anything outside the subset, with file and line.
    """
    return _Parser(name).parse(_split(name, text))


def _split(name: str, text: str) -> list[str | _Action]:
    """Part text from actions; white space is trimmed here."""
    parts: list[str | _Action] = []
    at, is_trimmed = 0, False
    while (opened := _OPEN.search(text, at)) is not None:
        plain = text[at : opened.start()]
        parts.append(_trim(plain, left=is_trimmed, right=opened["trim"] is not None))
        line = text.count("\n", 0, opened.start()) + 1
        comment = _COMMENT.match(text, opened.start())
        if comment is not None:
            at, is_trimmed = comment.end(), comment["right"] is not None
            continue
        tokens, at, is_trimmed = _tokens(name, text, at=opened.end(), line=line)
        parts.append(_Action(line, tokens))
    parts.append(_trim(text[at:], left=is_trimmed, right=False))
    return parts


def _trim(text: str, *, left: bool, right: bool) -> str:
    text = text.lstrip(" \t\r\n") if left else text
    return text.rstrip(" \t\r\n") if right else text


def _tokens(name: str, text: str, *, at: int, line: int) -> tuple[tuple[_Token, ...], int, bool]:
    found: list[_Token] = []
    while (closed := _CLOSE.match(text, at)) is None:
        token = _TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            raise unknown(name, line, f"{text[at : at + 30].strip()!r} cannot be read")
        found.append(_Token(token.lastgroup, token[token.lastgroup], token.start(token.lastgroup) == at))
        at = token.end()
    return tuple(found), closed.end(), closed["trim"] is not None


def unknown(name: str, line: int, what: str) -> errors.ProtocolError:
    """Return the error for a construct that is not part of the subset."""
    hint = "docs/design/chart.md lists what templates may use"
    return errors.ProtocolError(f"{name}:{line}: {what}", reason="TemplateUnknown", hint=hint)


class _Parser:
    """One file: blocks by a stack, pipelines by descent."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._tokens: list[_Token] = []
        self._bodies: list[list[Node]] = [[]]
        self._open: list[tuple[int, str, Block | None]] = []
        """Line, name of a definition or "", and the block."""
        self._found: dict[str, tuple[Node, ...]] = {}

    def parse(self, parts: list[str | _Action]) -> dict[str, tuple[Node, ...]]:
        for part in parts:
            if isinstance(part, str):
                if part:
                    self._bodies[-1].append(Text(part))
            else:
                self._line, self._tokens = part.line, list(part.tokens)
                self._action()
        if self._open:
            raise unknown(self._name, self._open[-1][0], "this block has no end")
        self._found[self._name] = tuple(self._bodies[0])
        return self._found

    def _fail(self, what: str) -> errors.ProtocolError:
        return unknown(self._name, self._line, what)

    def _peek(self) -> _Token:
        return self._tokens[0] if self._tokens else _Token("end", "the action's end", is_joined=False)

    def _take(self, kind: str = "", text: str = "") -> _Token:
        token = self._peek()
        if not self._tokens or (kind and token.kind != kind) or (text and token.text != text):
            raise self._fail(f"{text or kind or 'a value'} is wanted where {token.text!r} stands")
        return self._tokens.pop(0)

    def _is_next(self, text: str) -> bool:
        return self._peek().kind in {"mark", "word"} and self._peek().text == text

    def _action(self) -> None:
        word = self._peek().text if self._peek().kind == "word" else ""
        if word in _REFUSED:
            raise self._fail(f"action {word!r} is not known")
        if word in _BLOCKS:
            self._begin(self._take().text)
        elif word == "define":
            self._take()
            self._open.append((self._line, str(_constant(self._take("string"))), None))
            self._bodies.append([])
        elif word == "else":
            self._else()
        elif word == "end":
            self._take()
            self._end()
        else:
            self._bodies[-1].append(self._pipe())
        if self._tokens:
            raise self._fail(f"{self._peek().text!r} is not expected here")

    def _begin(self, keyword: str, *, is_chained: bool = False) -> None:
        names = self._range_names() if keyword == "range" else ()
        pipe = self._pipe()
        if pipe.variable:
            raise self._fail(f"a variable declared by {keyword!r} is not known: declare it before")
        block = Block(keyword, pipe, names)
        self._bodies[-1].append(block)
        self._open.append((self._line, "else" if is_chained else "", block))
        self._bodies.append(block.body)

    def _range_names(self) -> tuple[str, ...]:
        """Take `$index, $value :=`."""
        texts = [token.text for token in self._tokens]
        if ":=" not in texts:
            return ()
        names = texts[: texts.index(":=")]
        if len(names) != 3 or names[1] != "," or not (names[0][0] == names[2][0] == "$"):
            raise self._fail("range takes two variables, or none")
        del self._tokens[: len(names) + 1]
        return (names[0], names[2])

    def _else(self) -> None:
        self._take()
        block = self._open[-1][2] if self._open else None
        if block is None or self._bodies[-1] is block.otherwise:
            raise self._fail("this else belongs to no block")
        self._bodies[-1] = block.otherwise
        if self._tokens:
            self._take("word", "if")
            self._begin("if", is_chained=True)

    def _end(self) -> None:
        if not self._open:
            raise self._fail("this end belongs to no block")
        _, name, block = self._open.pop()
        body = self._bodies.pop()
        if block is None:
            self._found[name] = tuple(body)
        elif name == "else":
            self._end()  # `else if` is a block within the else, closed by the same end

    def _pipe(self) -> Pipe:
        variable, is_new = "", False
        if self._peek().kind == "variable" and len(self._tokens) > 1 and self._tokens[1].text in {":=", "="}:
            variable = self._take().text
            is_new = self._take().text == ":="
        commands = [self._command()]
        while self._is_next("|"):
            self._take()
            commands.append(self._command())
        return Pipe(tuple(commands), self._line, variable, is_new)

    def _command(self) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while self._tokens and not (self._is_next("|") or self._is_next(")")):
            operands.append(self._operand())
        if not operands:
            raise self._fail(f"a value is wanted where {self._peek().text!r} stands")
        return tuple(operands)

    def _operand(self) -> Operand:
        token = self._take()
        match token.kind:
            case "string" | "raw" | "number":
                return Literal(_constant(token))
            case "word":
                return Literal(_CONSTANTS[token.text]) if token.text in _CONSTANTS else Call(token.text)
            case "dot":
                return Path(".", ())
            case "field":
                return Path(".", _names(token))
            case "variable":
                return Path(token.text, self._joined_names())
            case "mark" if token.text == "(":
                pipe = self._pipe()
                self._take("mark", ")")
                return Path(pipe, self._joined_names())
            case _:
                raise self._fail(f"{token.text!r} is not expected here")

    def _joined_names(self) -> tuple[str, ...]:
        token = self._peek()
        return _names(self._take()) if token.kind == "field" and token.is_joined else ()


def _names(token: _Token) -> tuple[str, ...]:
    return tuple(token.text[1:].split("."))


def _constant(token: _Token) -> object:
    if token.kind == "number":
        return int(token.text)
    return token.text[1:-1] if token.kind == "raw" else json.loads(token.text)
