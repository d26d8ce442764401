"""Expands the macros of CEL and its libraries into comprehensions and plain calls.

The shapes are the reference's, since each node of them costs what it costs there.
Source: cel-go parser/macro.go, cel/library.go, ext/bindings.go, ext/comprehensions.go, ext/lists.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead.plan.cel.grammar.node import Call, Entries, Fold, Ident, Items, Literal, Node, Select, count
from fairlead.plan.cel.problem import Wrong, shown

ACCU: Final = "@result"
_UNUSED: Final = "#unused"
_INPUT: Final = "@__sortBy_input__"
_MOST_COPIES: Final = 50_000
"""Nodes that `optMap` may copy: each doubles its target, so a row of them would grow without end."""


class Macros:
    """Expands the macros of one expression."""

    def __init__(self) -> None:
        self._copied = 0

    def expanded(self, call: Call) -> Node:
        """Return what a call stands for: itself where it is no macro. Raises: Wrong."""
        if call.target is None:
            return _has(call) if call.function == "has" and len(call.args) == 1 else call
        if call.function in {"optMap", "optFlatMap"} and len(call.args) == 2:
            return self._optional(call, call.target)
        made = _MACROS.get((call.function, len(call.args)))
        return call if made is None else made(call, call.target)

    def _optional(self, call: Call, target: Node) -> Node:
        self._copied += count(target)
        if self._copied > _MOST_COPIES:
            raise Wrong(f"{call.function}() within each other grow too large", call.at)
        at = call.at
        name = _simple_name(call.args[0], f"{call.function}() variable name must be a simple identifier")
        value = Call(at, "value", [], target.copy())
        mapped: Node = _bind(at, name, value, call.args[1])
        if call.function == "optMap":
            mapped = Call(at, "optional.of", [mapped])
        return Call(at, "_?_:_", [Call(at, "hasValue", [], target), mapped, Call(at, "optional.none", [])])


def _has(call: Call) -> Node:
    field = call.args[0]
    if not isinstance(field, Select) or field.is_test:
        raise Wrong("invalid argument to has() macro", field.at)
    return Select(call.at, field.operand, field.field, is_test=True)


def _simple_name(node: Node, problem: str) -> str:
    if not isinstance(node, Ident):
        raise Wrong(problem, node.at)
    return node.name


def _variable(node: Node) -> str:
    name = _simple_name(node, "argument must be a simple name")
    if name in {ACCU, "__result__"}:
        raise Wrong("iteration variable overwrites accumulator variable", node.at)
    return name


def _variables(call: Call, *, two: bool) -> tuple[str, str]:
    first = _variable(call.args[0])
    second = _variable(call.args[1]) if two else ""
    if first == second:
        raise Wrong(f"duplicate variable name: {shown(first)}", call.args[1].at)
    return first, second


def _accu(at: int) -> Ident:
    return Ident(at, ACCU)


def _true(at: int) -> Literal:
    return Literal(at, True)


def _bind(at: int, name: str, value: Node, body: Node) -> Fold:
    return Fold(
        at,
        Items(at, []),
        _UNUSED,
        accu=name,
        init=value,
        condition=Literal(at, False),
        step=Ident(at, name),
        result=body,
    )


def _fold(call: Call, over: Node, *, two: bool, init: Node, condition: Node, step: Node, result: Node) -> Fold:
    first, second = _variables(call, two=two)
    return Fold(
        call.at,
        over,
        first,
        variable2=second,
        accu=ACCU,
        init=init,
        condition=condition,
        step=step,
        result=result,
    )


def _all(call: Call, over: Node) -> Node:
    at = call.at
    return _fold(
        call,
        over,
        two=len(call.args) == 3,
        init=_true(at),
        condition=Call(at, "@not_strictly_false", [_accu(at)]),
        step=Call(at, "_&&_", [_accu(at), call.args[-1]]),
        result=_accu(at),
    )


def _exists(call: Call, over: Node) -> Node:
    at = call.at
    return _fold(
        call,
        over,
        two=len(call.args) == 3,
        init=Literal(at, False),
        condition=Call(at, "@not_strictly_false", [Call(at, "!_", [_accu(at)])]),
        step=Call(at, "_||_", [_accu(at), call.args[-1]]),
        result=_accu(at),
    )


def _exists_one(call: Call, over: Node) -> Node:
    at = call.at
    more = Call(at, "_+_", [_accu(at), Literal(at, 1)])
    return _fold(
        call,
        over,
        two=len(call.args) == 3,
        init=Literal(at, 0),
        condition=_true(at),
        step=Call(at, "_?_:_", [call.args[-1], more, _accu(at)]),
        result=Call(at, "_==_", [_accu(at), Literal(at, 1)]),
    )


def _collect(call: Call, over: Node, step: Node, *, two: bool, init: Node, condition: Node | None) -> Node:
    at = call.at
    if condition is not None:
        step = Call(at, "_?_:_", [condition, step, _accu(at)])
    return _fold(call, over, two=two, init=init, condition=_true(at), step=step, result=_accu(at))


def _appended(call: Call, item: Node) -> Node:
    return Call(call.at, "_+_", [_accu(call.at), Items(call.at, [item])])


def _map(call: Call, over: Node) -> Node:
    condition = call.args[1] if len(call.args) == 3 else None
    step = _appended(call, call.args[-1])
    return _collect(call, over, step, two=False, init=Items(call.at, []), condition=condition)


def _filter(call: Call, over: Node) -> Node:
    step = _appended(call, call.args[0])
    return _collect(call, over, step, two=False, init=Items(call.at, []), condition=call.args[1])


def _transform_list(call: Call, over: Node) -> Node:
    condition = call.args[2] if len(call.args) == 4 else None
    step = _appended(call, call.args[-1])
    return _collect(call, over, step, two=True, init=Items(call.at, []), condition=condition)


def _transform_map(call: Call, over: Node) -> Node:
    condition = call.args[2] if len(call.args) == 4 else None
    key = Ident(call.at, _variables(call, two=True)[0])
    step = Call(call.at, "cel.@mapInsert", [_accu(call.at), key, call.args[-1]])
    return _collect(call, over, step, two=True, init=Entries(call.at, []), condition=condition)


def _transform_entry(call: Call, over: Node) -> Node:
    condition = call.args[2] if len(call.args) == 4 else None
    step = Call(call.at, "cel.@mapInsert", [_accu(call.at), call.args[-1]])
    return _collect(call, over, step, two=True, init=Entries(call.at, []), condition=condition)


def _cel_bind(call: Call, target: Node) -> Node:
    if not isinstance(target, Ident) or target.name != "cel":
        return call
    name = _simple_name(call.args[0], "cel.bind() variable names must be simple identifiers")
    return _bind(call.at, name, call.args[1], call.args[2])


def _sort_by(call: Call, over: Node) -> Node:
    at = call.at
    keyed = Call(at, "map", call.args, Ident(at, _INPUT))
    keys = _map(keyed, Ident(at, _INPUT))
    return _bind(at, _INPUT, over, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, _INPUT)))


_MACROS: Final[dict[tuple[str, int], Callable[[Call, Node], Node]]] = {
    **{("all", count): _all for count in (2, 3)},
    **{("exists", count): _exists for count in (2, 3)},
    **{(name, count): _exists_one for name in ("exists_one", "existsOne") for count in (2, 3)},
    **{("map", count): _map for count in (2, 3)},
    ("filter", 2): _filter,
    **{("transformList", count): _transform_list for count in (3, 4)},
    **{("transformMap", count): _transform_map for count in (3, 4)},
    **{("transformMapEntry", count): _transform_entry for count in (3, 4)},
    ("bind", 3): _cel_bind,
    ("sortBy", 2): _sort_by,
}
