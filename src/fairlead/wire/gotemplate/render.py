"""Parsed templates and values in, text out: what helm's engine would write, for the subset that `parse` reads.

`include` renders a named template with the value it is given; `and` and `or` look at no more than they must. Fields of
a map that are missing are nothing; a field of nothing is an error with file and line, as in helm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fairlead.wire.gotemplate import function
from fairlead.wire.gotemplate.parse import Block, Call, Literal, Node, Operand, Path, Pipe, Text, parse, unknown

_DEEPEST: Final = 50


class Templates:
    """A set of files that may include each other's definitions."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Read all files, by name. Raises: ProtocolError (`TemplateUnknown`): what is not part of the subset."""
        self._bodies: dict[str, tuple[str, tuple[Node, ...]]] = {}
        """File and body by the template's name."""
        for name, text in files.items():
            self._bodies |= {key: (name, body) for key, body in parse(name, text).items()}

    def render(self, name: str, values: object, *, depth: int = 0) -> str:
        """Return what a template writes for a value. Raises: ProtocolError, with file and line."""
        file, body = self._bodies[name]
        return "".join(_Run(self, file, depth, values).write(body, values))

    def knows(self, name: str) -> bool:
        """Whether there is such a template."""
        return name in self._bodies


class _Run:
    """One rendering of one template."""

    def __init__(self, templates: Templates, file: str, depth: int, root: object) -> None:
        self._templates = templates
        self._file = file
        self._depth = depth
        self._scopes: list[dict[str, object]] = [{"$": root}]

    def write(self, body: Sequence[Node], dot: object) -> Iterator[str]:
        """Yield the text of a body."""
        for node in body:
            if isinstance(node, Text):
                yield node.text
            elif isinstance(node, Pipe):
                value = self._value(node, dot)
                if not node.variable:
                    yield self._guarded(node.line, lambda value=value: function.printed(value))
            else:
                yield from self._block(node, dot)

    def _block(self, block: Block, dot: object) -> Iterator[str]:
        value = self._value(block.pipe, dot)
        if not value:
            yield from self._scoped(block.otherwise, dot)
        elif block.keyword == "range":
            for key, item in self._items(value, block.pipe.line):
                yield from self._scoped(block.body, item, dict(zip(block.names, (key, item), strict=False)))
        else:
            yield from self._scoped(block.body, value if block.keyword == "with" else dot)

    def _items(self, value: object, line: int) -> list[tuple[object, object]]:
        if isinstance(value, Mapping):
            return [(key, value[key]) for key in sorted(value)]
        if isinstance(value, list):
            return list(enumerate(value))
        raise unknown(self._file, line, f"range over {type(value).__name__} is not known")

    def _scoped(self, body: Sequence[Node], dot: object, names: dict[str, object] | None = None) -> Iterator[str]:
        self._scopes.append(names or {})
        yield from self.write(body, dot)
        self._scopes.pop()

    def _value(self, pipe: Pipe, dot: object) -> object:
        value: object = None
        for position, command in enumerate(pipe.commands):
            value = self._command(command, dot, pipe.line, piped=(value,) if position else ())
        if pipe.variable:
            self._assign(pipe, value)
        return value

    def _assign(self, pipe: Pipe, value: object) -> None:
        if not pipe.is_new:
            self._variable(pipe.variable, pipe.line)
        known = (scope for scope in reversed(self._scopes) if pipe.variable in scope)
        scope = self._scopes[-1] if pipe.is_new else next(known)
        scope[pipe.variable] = value

    def _command(self, command: Sequence[Operand], dot: object, line: int, *, piped: tuple[object, ...]) -> object:
        head = command[0]
        if not isinstance(head, Call):
            if len(command) > 1 or piped:
                raise unknown(self._file, line, "only a function takes arguments")
            return self._operand(head, dot, line)
        if head.name in {"and", "or"}:
            return self._logic(head.name == "and", (*command[1:], *map(Literal, piped)), dot, line)
        arguments = [*(self._operand(item, dot, line) for item in command[1:]), *piped]
        return self._call(head.name, arguments, line)

    def _logic(self, is_and: bool, operands: Sequence[Operand], dot: object, line: int) -> object:
        value: object = None
        for operand in operands:
            value = self._operand(operand, dot, line)
            if bool(value) is not is_and:
                break
        return value

    def _call(self, name: str, arguments: list[Any], line: int) -> object:
        if name == "include":
            return self._include(arguments, line)
        known = function.FUNCTIONS.get(name)
        if known is None:
            raise unknown(self._file, line, f"function {name!r} is not known")
        return self._guarded(line, lambda: known(*arguments))

    def _include(self, arguments: list[Any], line: int) -> str:
        if len(arguments) != 2 or not self._templates.knows(arguments[0]):
            raise unknown(self._file, line, f"include of {arguments[:1]} with {len(arguments)} arguments")
        if self._depth >= _DEEPEST:
            raise unknown(self._file, line, f"include is nested deeper than {_DEEPEST}")
        return self._templates.render(arguments[0], arguments[1], depth=self._depth + 1)

    def _guarded(self, line: int, call: Any) -> Any:
        try:
            return call()
        except (function.Refused, TypeError, AttributeError, ValueError) as error:
            raise unknown(self._file, line, str(error)) from error

    def _operand(self, operand: Operand, dot: object, line: int) -> object:
        match operand:
            case Literal():
                return operand.value
            case Call():
                return self._call(operand.name, [], line)
            case Path(root=Pipe() as pipe):
                return self._fields(self._value(pipe, dot), operand.names, line)
            case Path(root="."):
                return self._fields(dot, operand.names, line)
            case Path():
                return self._fields(self._variable(str(operand.root), line), operand.names, line)

    def _variable(self, name: str, line: int) -> object:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise unknown(self._file, line, f"variable {name} is not declared")

    def _fields(self, value: object, names: tuple[str, ...], line: int) -> object:
        for name in names:
            if not isinstance(value, Mapping):
                raise unknown(self._file, line, f"there is no field {name!r} in {type(value).__name__}")
            value = value.get(name)
        return value
