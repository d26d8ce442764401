"""Parses an expression into nodes, and expands its macros on the way.

A Pratt parser over the grammar's few levels. The limits are the reference's: 250 expressions within each other, and
250 operators of one level in a row, which it counts as nesting too.
Source: the CEL language definition, "Syntax"; cel-go parser/parser.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from fairlead.plan.cel import descent
from fairlead.plan.cel.grammar import lexer, macro
from fairlead.plan.cel.grammar.node import Call, Entries, Ident, Items, Literal, Node, Select
from fairlead.plan.cel.problem import Wrong, shown

_DEEPEST: Final = 250
_RELATIONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_SUMS, _PRODUCTS = frozenset("+-"), frozenset("*/%")
_OPERATORS: Final = {
    **{sign: f"_{sign}_" for sign in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%")},
    "in": "@in",
}
_POWER: Final = {**dict.fromkeys(_RELATIONS, 1), **dict.fromkeys(_SUMS, 2), **dict.fromkeys(_PRODUCTS, 3)}
_RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


def parse(text: str) -> Node:
    """Return the expression that a text is. Raises: Wrong."""
    parser = _Parser(lexer.tokens(text))
    root = descent.descend(parser.expression, "expression")
    if parser.token.kind != "end":
        raise parser.unexpected()
    return root


_Reading = Generator[str, Node, Node]
"""Reads a node; where it comes to an expression within, it yields, and is sent that expression."""


class _Parser:
    def __init__(self, found: list[lexer.Token]) -> None:
        self._tokens = found
        self._place = 0
        self._depth = 0
        self._rows = {"relation": 0, "calculation": 0, "member": 0}
        self.macros = macro.Macros()

    @property
    def token(self) -> lexer.Token:
        return self._tokens[self._place]

    def unexpected(self) -> Wrong:
        said = shown(self.token.text) if self.token.text else "the end"
        return Wrong(f"Syntax error: unexpected {said}", self.token.at)

    def _take(self, kind: str) -> lexer.Token:
        token = self.token
        if token.kind != kind:
            raise self.unexpected()
        self._place += 1
        return token

    def _has(self, kind: str) -> bool:
        if self.token.kind != kind:
            return False
        self._place += 1
        return True

    def _deeper(self, row: str) -> None:
        self._rows[row] += 1
        if self._rows[row] > _DEEPEST:
            raise Wrong(f"expression recursion limit exceeded: {_DEEPEST}", self.token.at)

    def expression(self, _what: str) -> _Reading:
        """Read a conditional, or what is below it."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Wrong(f"expression recursion limit exceeded: {_DEEPEST}", self.token.at)
        rows = dict(self._rows)
        left = yield from self._logic("||", "_||_")
        at = self.token.at
        if self._has("?"):
            truthy = yield from self._logic("||", "_||_")
            self._take(":")
            left = Call(at, "_?_:_", [left, truthy, (yield "expression")])
        self._depth -= 1
        self._rows = rows
        return left

    def _logic(self, sign: str, function: str) -> _Reading:
        """Read terms of `||`, each of `&&`; many make a balanced tree, which is as deep as its logarithm."""
        terms, places = [(yield from self._term(sign))], []
        while self.token.kind == sign:
            places.append(self._take(sign).at)
            terms.append((yield from self._term(sign)))
        return _balanced(function, terms, places, 0, len(terms) - 1)

    def _term(self, sign: str) -> _Reading:
        return (yield from (self._logic("&&", "_&&_") if sign == "||" else self._binary(1)))

    def _binary(self, power: int) -> _Reading:
        """Read operators that bind at least as `power` says, from left to right."""
        rows = dict(self._rows)
        self._deeper("relation" if power == 1 else "calculation")
        left = yield from self._unary()
        while (found := _POWER.get(self.token.kind, 0)) >= power:
            sign = self.token
            self._place += 1
            self._deeper("relation" if found == 1 else "calculation")
            left = Call(sign.at, _OPERATORS[sign.kind], [left, (yield from self._binary(found + 1))])
        self._rows = rows
        return left

    def _unary(self) -> _Reading:
        sign = self.token
        if sign.kind not in {"!", "-"}:
            return (yield from self._member())
        count = 0
        while self.token.kind == sign.kind:
            is_number = sign.kind == "-" and self._tokens[self._place + 1].kind == "number"
            if is_number and not count:
                break
            count += 1
            self._place += 1
        operand = yield from self._member()
        if count % 2 == 0:
            return operand
        return Call(sign.at, "!_" if sign.kind == "!" else "-_", [operand])

    def _member(self) -> _Reading:
        """Read a primary and what follows it: fields, methods, indices."""
        rows = self._rows["member"]
        self._deeper("member")
        node = yield from self._primary()
        while self.token.kind in {".", "["}:
            self._deeper("member")
            node = yield from (self._index(node) if self.token.kind == "[" else self._field(node))
        self._rows["member"] = rows
        return node

    def _index(self, node: Node) -> _Reading:
        at = self._take("[").at
        function = "_[?_]" if self._has("?") else "_[_]"
        index = yield "expression"
        self._take("]")
        return Call(at, function, [node, index])

    def _field(self, node: Node) -> _Reading:
        at = self._take(".").at
        if self._has("?"):
            return Call(at, "_?._", [node, Literal(self.token.at, self._take("name").text)])
        name = self._take("name")
        if self.token.kind == "{":
            raise Wrong("messages are not made in a selector", self.token.at)
        if not self._has("("):
            return Select(at, node, name.text)
        at = self._tokens[self._place - 1].at
        return self.macros.expanded(Call(at, name.text, (yield from self._sequence(")")), node))

    def _primary(self) -> _Reading:
        token = self.token
        if token.kind == "literal":
            self._place += 1
            return Literal(token.at, token.value)
        if token.kind in {"number", "-"}:
            is_negative = self._has("-")
            said = self._take("number")
            return Literal(token.at, lexer.number(said.text, token.at, is_negative=is_negative))
        if self._has("("):
            inner = yield "expression"
            self._take(")")
            return inner
        if self._has("["):
            return (yield from self._list(token.at))
        if self._has("{"):
            return (yield from self._map(token.at))
        prefix = "." if self._has(".") else ""
        return (yield from self._name(prefix))

    def _name(self, prefix: str) -> _Reading:
        name = self._take("name")
        if name.text in _RESERVED:
            raise Wrong(f"reserved identifier: {name.text}", name.at)
        if self.token.kind == "{":
            raise Wrong("messages are not made in a selector", self.token.at)
        if self._has("("):
            at = self._tokens[self._place - 1].at
            return self.macros.expanded(Call(at, prefix + name.text, (yield from self._sequence(")"))))
        return Ident(name.at, prefix + name.text)

    def _sequence(self, end: str) -> Generator[str, Node, list[Node]]:
        found: list[Node] = []
        if self._has(end):
            return found
        found.append((yield "expression"))
        while self._has(","):
            found.append((yield "expression"))
        self._take(end)
        return found

    def _list(self, at: int) -> _Reading:
        items: list[Node] = []
        optional = set()
        while not self._has("]"):
            if self._has("?"):
                optional.add(len(items))
            items.append((yield "expression"))
            if not self._has(","):
                self._take("]")
                break
        return Items(at, items, frozenset(optional))

    def _map(self, at: int) -> _Reading:
        entries: list[tuple[Node, Node]] = []
        optional = set()
        while not self._has("}"):
            if self._has("?"):
                optional.add(len(entries))
            key = yield "expression"
            self._take(":")
            entries.append((key, (yield "expression")))
            if not self._has(","):
                self._take("}")
                break
        return Entries(at, entries, frozenset(optional))


def _balanced(function: str, terms: list[Node], places: list[int], first: int, last: int) -> Node:
    if first == last:
        return terms[first]
    middle = (first + last) // 2
    left = _balanced(function, terms, places, first, middle)
    return Call(places[middle], function, [left, _balanced(function, terms, places, middle + 1, last)])
