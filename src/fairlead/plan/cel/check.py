"""Gives each node its type and each call the overloads that fit, or says what does not.

The environment is the one of a device selector: the variable `device`, the names of types, and the functions of
`declare`. Lists and maps have items of one type.
Source: cel-go checker/checker.go and cel/validator.go (homogeneous literals), v0.29.2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from fairlead.plan.cel import celtype, declare, descent
from fairlead.plan.cel.celtype import BOOL, DYN, INT, STRING, Bindings, Type
from fairlead.plan.cel.functions import wording
from fairlead.plan.cel.grammar.node import Call, Entries, Fold, Ident, Items, Literal, Node, Select
from fairlead.plan.cel.problem import Wrong, shown
from fairlead.plan.cel.value import TypeValue, UInt

_Checking = Generator[Node, Type, Type]
_LITERALS: Final[dict[type, Type]] = {
    bool: BOOL,
    int: INT,
    UInt: celtype.UINT,
    float: celtype.DOUBLE,
    str: STRING,
    bytes: celtype.BYTES,
    type(None): celtype.NULL,
}
_ATTRIBUTES: Final = celtype.map_of(STRING, celtype.map_of(STRING, DYN))
_FIELDS: Final = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": _ATTRIBUTES,
    "capacity": celtype.map_of(STRING, celtype.map_of(STRING, celtype.QUANTITY)),
}
_SHOWN: Final = {
    **{f"_{sign}_": sign for sign in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&&", "||")},
    "_[_]": "[]",
    "@in": "in",
    "!_": "!",
    "-_": "-",
    "_?_:_": "? :",
}


def check(root: Node, release: str) -> Type:
    """Complete an expression's nodes and return its type. Raises: Wrong."""
    checker = _Checker(release)
    descent.descend(checker.visit, root)
    checker.settle(root)
    return root.kind


class _Checker:
    def __init__(self, release: str) -> None:
        self._bound: Bindings = {}
        self._scopes: list[dict[str, Type]] = []
        self._free = 0
        self._functions = declare.functions(release)

    def visit(self, node: Node) -> _Checking:
        """Return the node's type, once the nodes below it have theirs."""
        if isinstance(node, Literal):
            found = _LITERALS[type(node.value)]
        elif isinstance(node, Ident):
            found = self._ident(node)
        else:
            found = yield from _VISITS[type(node)](self, node)
        node.kind = found
        return found

    def settle(self, root: Node) -> None:
        """Replace the variables in all types, and hold lists and maps to one type of items."""
        waiting = [root]
        literals: list[Items | Entries] = []
        formats: list[Call] = []
        exempt: set[int] = set()
        while waiting:
            node = waiting.pop()
            node.kind = celtype.substitute(self._bound, node.kind, to_dyn=True)
            below = node.children()
            if isinstance(node, Call) and node.function == "format":
                formats.append(node)
            if id(node) in exempt or (isinstance(node, Call) and node.function == "format"):
                exempt.update(map(id, below))
            elif isinstance(node, Items | Entries):
                literals.append(node)
            waiting.extend(below)
        for literal in literals:
            _hold_to_one_type(literal)
        for call in formats:
            _hold_to_clauses(call)

    def _new(self) -> Type:
        self._free += 1
        return Type(f"$v{self._free}")

    def _assign(self, given: list[Type], wanted: list[Type]) -> bool:
        bound = celtype.assign(self._bound, given, wanted)
        if bound is None:
            return False
        self._bound = bound
        return True

    def _known(self, kind: Type) -> Type:
        return celtype.substitute(self._bound, kind)

    def _ident(self, node: Ident) -> Type:
        """Check a name: of a variable of a macro, of the device, or of a type."""
        found = self._variable(node.name)
        if found is None:
            found = declare.TYPE_NAMES.get(node.name.removeprefix("."))
            if found is None:
                raise Wrong(f"undeclared reference to {shown(node.name)}", node.at)
            node.constant = TypeValue(found.params[0].name)
        return found

    def _variable(self, name: str) -> Type | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return celtype.DEVICE if name in {"device", ".device"} else None

    def select(self, node: Select) -> _Checking:
        """Check a field, or a dotted name that is a type's."""
        dotted = None if node.is_test else _dotted(node)
        if dotted is not None and self._variable(dotted.partition(".")[0]) is None:
            named = declare.TYPE_NAMES.get(dotted.removeprefix("."))
            if named is not None:
                node.constant = TypeValue(named.params[0].name)
                return named
        operand = yield node.operand
        found = self._field(node, operand, node.field, optional=False)
        return BOOL if node.is_test else self._known(found)

    def _field(self, node: Node, operand: Type, field: str, *, optional: bool) -> Type:
        target, was_optional = celtype.unwrapped(self._known(operand))
        if target.name == "map":
            found = target.params[1]
        elif target == celtype.DEVICE:
            if field not in _FIELDS:
                raise Wrong(f"undefined field {shown(field)}", node.at)
            found = _FIELDS[field]
        elif celtype.is_variable(target):
            self._assign([DYN], [target])
            found = DYN
        elif celtype.is_dyn(target):
            found = DYN
        else:
            raise Wrong(f"type '{target}' does not support field selection", node.at)
        return celtype.optional_of(found) if was_optional or optional else found

    def call(self, node: Call) -> _Checking:
        """Check a call, of a function or of a method."""
        if node.function == "_?._":
            operand = yield node.args[0]
            field = node.args[1]
            field.kind = STRING
            node.overloads = ["select_optional_field"]
            return self._known(self._field(node, operand, str(getattr(field, "value", "")), optional=True))
        kinds = []
        for arg in node.args:
            kinds.append((yield arg))  # noqa: PERF401  a comprehension cannot yield
        if node.target is not None:
            prefix = _dotted(node.target)
            whole = f"{prefix}.{node.function}"
            if prefix is not None and whole in self._functions:
                node.function, node.target = whole, None
            else:
                kinds.insert(0, (yield node.target))
        node.function = node.function.removeprefix(".")
        if node.function not in self._functions:
            raise Wrong(f"undeclared reference to {shown(node.function)}", node.at)
        return self._resolve(node, kinds)

    def _resolve(self, node: Call, kinds: list[Type]) -> Type:
        if node.function in {"_&&_", "_||_"}:
            return self._logic(node, kinds)
        result: Type | None = None
        for one in self._functions[node.function]:
            if one.is_method != (node.target is not None) or len(one.args) != len(kinds):
                continue
            fresh = {name: self._new() for name in one.variables}
            wanted = [celtype.substitute(fresh, arg) for arg in one.args]
            if not self._assign(kinds, wanted):
                continue
            node.overloads.append(one.name)
            found = self._known(celtype.substitute(fresh, one.result))
            if result is None:
                result = found
            elif not celtype.is_dyn(result) and found != result:
                result = DYN
        if result is None:
            raise Wrong(self._no_overload(node, kinds), node.at)
        return result

    def _logic(self, node: Call, kinds: list[Type]) -> Type:
        node.overloads = ["logical_and" if node.function == "_&&_" else "logical_or"]
        for arg, kind in zip(node.args, kinds, strict=True):
            if not self._assign([kind], [BOOL]):
                raise Wrong(f"expected type 'bool' but found '{self._known(kind)}'", arg.at)
        return BOOL

    def _no_overload(self, node: Call, kinds: list[Type]) -> str:
        given = [str(celtype.substitute(self._bound, kind, to_dyn=True)) for kind in kinds]
        said = f"{given[0]}.({', '.join(given[1:])})" if node.target is not None else f"({', '.join(given)})"
        name = _SHOWN.get(node.function, node.function)
        return f"no such overload: found no matching overload for '{name}' applied to '{said}'"

    def items(self, node: Items) -> _Checking:
        """Check a list."""
        joined: Type | None = None
        for place, item in enumerate(node.items):
            kind = yield item
            joined = self._join(joined, self._item(item, kind, is_optional=place in node.optional))
        return celtype.list_of(joined or self._new())

    def entries(self, node: Entries) -> _Checking:
        """Check a map."""
        keys: Type | None = None
        values: Type | None = None
        for place, (key, value) in enumerate(node.entries):
            keys = self._join(keys, (yield key))
            kind = yield value
            values = self._join(values, self._item(value, kind, is_optional=place in node.optional))
        return celtype.map_of(keys or self._new(), values or self._new())

    def _item(self, node: Node, kind: Type, *, is_optional: bool) -> Type:
        if not is_optional:
            return kind
        found, was_optional = celtype.unwrapped(kind)
        if not was_optional and not celtype.is_dyn(kind):
            raise Wrong(f"expected type 'optional_type({kind})' but found '{kind}'", node.at)
        return found

    def _join(self, before: Type | None, kind: Type) -> Type:
        if before is None:
            return kind
        # Items of two types are dyn here; `settle` refuses them but where a text is formatted.
        return celtype.general(before, kind) if self._assign([before], [kind]) else DYN

    def fold(self, node: Fold) -> _Checking:
        """Check a comprehension; its variables are known in its parts alone."""
        over = yield node.over
        accu = yield node.init
        over = self._known(over)
        self._scopes.append({node.accu: accu})
        self._scopes.append(self._loop_variables(node, over))
        condition = yield node.condition
        self._expect(node.condition, condition, BOOL)
        step = yield node.step
        self._expect(node.step, step, accu)
        self._scopes.pop()
        result = yield node.result
        self._scopes.pop()
        return self._known(result)

    def _expect(self, node: Node, kind: Type, wanted: Type) -> None:
        if not self._assign([wanted], [kind]):
            raise Wrong(f"expected type '{self._known(wanted)}' but found '{self._known(kind)}'", node.at)

    def _loop_variables(self, node: Fold, over: Type) -> dict[str, Type]:
        if over.name == "list":
            first, second = (INT, over.params[0]) if node.variable2 else (over.params[0], over.params[0])
        elif over.name == "map":
            first, second = over.params
        elif celtype.is_dyn(over) or celtype.is_variable(over):
            self._assign([DYN], [over])
            first = second = DYN
        else:
            raise Wrong(f"expression of type '{over}' cannot be range of a comprehension", node.over.at)
        return {node.variable: first, node.variable2: second} if node.variable2 else {node.variable: first}


_VISITS: Final[dict[type, Callable[[_Checker, Any], _Checking]]] = {
    Select: _Checker.select,
    Call: _Checker.call,
    Items: _Checker.items,
    Entries: _Checker.entries,
    Fold: _Checker.fold,
}


def _dotted(node: Node) -> str | None:
    """Return the dotted name that a chain of fields is; None: it is more than names."""
    names: list[str] = []
    while isinstance(node, Select) and not node.is_test:
        names.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(names)]) if isinstance(node, Ident) else None


def _hold_to_one_type(node: Items | Entries) -> None:
    if isinstance(node, Items):
        _same(node.items, node.optional)
        return
    _same([key for key, _ in node.entries], frozenset())
    _same([value for _, value in node.entries], node.optional)


def _hold_to_clauses(node: Call) -> None:
    """Refuse a literal text with clauses that do not fit its literal items."""
    text, items = node.target, node.args[0]
    if isinstance(text, Literal) and isinstance(text.value, str) and isinstance(items, Items):
        problem = wording.problem_with(text.value, [item.kind.name for item in items.items])
        if problem is not None:
            raise Wrong(problem, node.at)


def _same(nodes: list[Node], optional: frozenset[int]) -> None:
    kinds = [celtype.unwrapped(node.kind)[0] if place in optional else node.kind for place, node in enumerate(nodes)]
    for node, kind in zip(nodes, kinds, strict=True):
        if kind != kinds[0]:
            raise Wrong(f"expected type '{kinds[0]}' but found '{kind}'", node.at)
