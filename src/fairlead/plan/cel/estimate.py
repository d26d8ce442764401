"""Estimates what an expression may cost at most, as the API server does before it stores one.

Sizes are what is known before any device is: of literals, of what the resource types bound (64 characters of a value,
32 names of a device), of what functions make of them. What has no bound is `MANY`. Only the upper ends decide, and the
lower ends only where a replacement's size hangs on them.
Source: cel-go checker/cost.go; apiserver pkg/cel/library/cost.go; dynamic-resource-allocation cel/compile.go
(`sizeEstimator`); v0.26.0 and v0.29.2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from fairlead.plan.cel import celtype, descent, estimatecall
from fairlead.plan.cel.celtype import Type
from fairlead.plan.cel.estimatecall import MANY, UNKNOWN, Known, Size
from fairlead.plan.cel.grammar.macro import ACCU
from fairlead.plan.cel.grammar.node import Call, Entries, Fold, Ident, Items, Literal, Node, Select

_Costing = Generator[Node, Size, Size]
Path = tuple[str, ...]
_NOTHING: Final = Size(0, 0)
_ONE: Final = Size(1, 1)
_SCALARS: Final = frozenset(
    {celtype.BOOL, celtype.DOUBLE, celtype.DURATION, celtype.INT, celtype.TIMESTAMP, celtype.UINT}
)
_NAMES, _DOMAIN, _IDENTIFIER, _VALUE = 32, 63, 32, 64
"""Of a device: names, and characters of a domain (the driver is one), of an id, of a value."""


class _Shape(NamedTuple):
    """What the API bounds about a part of the device."""

    size: int
    keys: _Shape | None = None
    items: _Shape | None = None
    fields: tuple[tuple[str, _Shape], ...] = ()


class _Entries(NamedTuple):
    """Sizes of the keys and of the items of a list or a map."""

    container: str
    key: Size
    value: Size

    def union(self, other: _Entries | None) -> _Entries | None:
        if other is None:
            return None
        return _Entries(self.container, self.key.union(other.key), self.value.union(other.value))


class _Local(NamedTuple):
    path: Path
    size: Size | None
    entries: _Entries | None


_ATTRIBUTE: Final = _Shape(_VALUE)
_INNER: Final = _Shape(_NAMES, keys=_Shape(_IDENTIFIER), items=_ATTRIBUTE)
_AMOUNTS: Final = _Shape(_NAMES, keys=_Shape(_IDENTIFIER), items=_Shape(0))
_DEVICE: Final = _Shape(
    0,
    fields=(
        ("driver", _Shape(_DOMAIN)),
        ("allowMultipleAllocations", _Shape(1)),
        ("attributes", _Shape(_NAMES, keys=_Shape(_DOMAIN), items=_INNER)),
        ("capacity", _Shape(_NAMES, keys=_Shape(_DOMAIN), items=_AMOUNTS)),
    ),
)


def estimate(root: Node, release: str) -> int | None:
    """Return the most that a checked expression may cost; None: it has no bound."""
    worst = descent.descend(_Coster(release).visit, root).most
    return None if worst >= MANY else worst


def _bounded(path: Path) -> Size | None:
    """Return the size that the API bounds for what lies at a path from `device`."""
    if not path or path[0] != "device":
        return None
    shape: _Shape | None = _DEVICE
    for name in path[1:]:
        if shape is None:
            return None
        shape = _below(shape, name)
    return None if shape is None else Size(0, shape.size)


def _below(shape: _Shape, name: str) -> _Shape | None:
    if name in {"@items", "@values"}:
        return shape.items
    if name == "@keys":
        return shape.keys
    if shape.items is _ATTRIBUTE:
        return _ATTRIBUTE
    return dict(shape.fields).get(name)


class _Coster:
    def __init__(self, release: str) -> None:
        self._release = release
        self._paths: dict[Node, Path] = {}
        self._sizes: dict[Node, Size] = {}
        self._entries: dict[Node, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def visit(self, node: Node) -> _Costing:
        """Return what a node costs, asking for the costs of the nodes below it."""
        if isinstance(node, Literal):
            return _NOTHING
        if isinstance(node, Ident):
            return self._ident(node)
        return (yield from _VISITS[type(node)](self, node))

    def _ident(self, node: Ident) -> Size:
        local = self._local(node)
        self._paths[node] = local.path if local else (node.name,)
        return _ONE

    def _local(self, node: Node) -> _Local | None:
        stack = self._locals.get(node.name) if isinstance(node, Ident) else None
        return stack[-1] if stack else None

    def _path(self, node: Node) -> Path:
        local = self._local(node)
        return local.path if local else self._paths.get(node, ())

    def select(self, node: Select) -> _Costing:
        """Return what a field costs."""
        if node.constant is not None:
            return _ONE
        total = yield node.operand
        if node.is_test:
            return total
        operand = node.operand.kind
        if operand.name == "map" or operand == celtype.DEVICE:
            total = total.plus(_ONE)
        self._paths[node] = (*self._path(node.operand), node.field)
        return total

    def call(self, node: Call) -> _Costing:
        """Return what a call costs, and keep the size of what it returns."""
        costs = []
        for arg in node.args:
            costs.append((yield arg))  # noqa: PERF401  a comprehension cannot yield
        if node.function == "dyn":
            self._copy(node, node.args[0])
            return costs[0].plus(_ONE)
        target = None if node.target is None else (yield node.target)
        if not node.overloads:
            return _NOTHING
        least, most = MANY, 0
        size: Size | None = None
        for overload in node.overloads:
            cost, made = self._overload(node, overload, costs)
            least, most = min(least, cost.least), max(most, cost.most)
            if made is not None:
                size = made if size is None else size.union(made)
            size = self._indexed(node, overload, size)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[node] = size
        return Size(least, most).plus(target or _NOTHING)

    def _indexed(self, node: Call, overload: str, size: Size | None) -> Size | None:
        if overload not in {"index_list", "index_map"}:
            return size
        entries = self._entries_of(node.args[0])
        self._paths[node] = (*self._path(node.args[0]), "@items" if overload == "index_list" else "@values")
        return entries.value if entries else None

    def _overload(self, node: Call, overload: str, costs: list[Size]) -> tuple[Size, Size | None]:
        total = _NOTHING
        for one in costs:
            total = total.plus(one)
        if overload in {"logical_and", "logical_or"}:
            return Size(costs[0].least, costs[0].plus(costs[1]).most), None
        target = None if node.target is None else self._known(node.target)
        args = [self._known(arg) for arg in node.args]
        found = estimatecall.estimated(node.function, overload, target, args, self._release)
        if found is not None:
            return found[0].plus(total), found[1]
        if overload == "conditional":
            return self._conditional(node, costs, args)
        if overload in {"add_string", "add_bytes", "add_list"}:
            entries = self._entries_of(node.args[0])
            if entries is not None and (both := entries.union(self._entries_of(node.args[1]))) is not None:
                self._entries[node] = both
        cost, size = estimatecall.standard(overload, target, args, self._release)
        return cost.plus(total), size

    def _conditional(self, node: Call, costs: list[Size], args: list[Known]) -> tuple[Size, Size | None]:
        entries = self._entries_of(node.args[1])
        if entries is not None and (both := entries.union(self._entries_of(node.args[2]))) is not None:
            self._entries[node] = both
        size = (args[1].computed or UNKNOWN).union(args[2].computed or UNKNOWN)
        return costs[0].plus(costs[1].union(costs[2])), size

    def items(self, node: Items) -> _Costing:
        """Return what a list costs."""
        total = Size(10, 10)
        inner = Size(MANY if node.items else 0, 0)
        for item in node.items:
            total = total.plus((yield item))
            inner = inner.union(self._size(item) or UNKNOWN)
        self._entries[node] = _Entries("list", _ONE, inner)
        return total

    def entries(self, node: Entries) -> _Costing:
        """Return what a map costs."""
        total = Size(30, 30)
        keys = values = Size(MANY if node.entries else 0, 0)
        for key, value in node.entries:
            total = total.plus((yield key))
            total = total.plus((yield value))
            keys = keys.union(self._size(key) or UNKNOWN)
            values = values.union(self._size(value) or UNKNOWN)
        self._entries[node] = _Entries("map", keys, values)
        return total

    def fold(self, node: Fold) -> _Costing:
        """Return what a comprehension costs: its rounds are as many as its range is large."""
        over = yield node.over
        init = yield node.init
        self._push(node.accu, _Local(self._path(node.init), self._size(node.init), self._entries_of(node.init)))
        if isinstance(node.condition, Literal) and node.condition.value is False:
            result = yield node.result
            self._locals[node.accu].pop()
            self._copy(node, node.result)
            return over.plus(init).plus(result)
        self._push_rounds(node)
        loop = yield node.condition
        step = yield node.step
        self._locals[node.variable].pop()
        if node.variable2:
            self._locals[node.variable2].pop()
        result = yield node.result
        self._locals[node.accu].pop()
        rounds = self._size(node.over) or UNKNOWN
        self._keep(node, rounds)
        return over.plus(init).plus(result).plus(rounds.times(step.plus(loop)))

    def _keep(self, node: Fold, rounds: Size) -> None:
        if isinstance(node.init, Literal):
            self._sizes[node] = self._size(node.init) or UNKNOWN
        elif isinstance(node.init, Items | Entries):
            self._sizes[node] = rounds
            entries = self._entries_of(node.step)
            if entries is not None:
                self._entries[node] = entries

    def _push_rounds(self, node: Fold) -> None:
        entries = self._entries_of(node.over)
        container = entries.container if entries else node.over.kind.name
        path = self._path(node.over)
        is_list = container == "list"
        key = _Local((*path, "@indices" if is_list else "@keys"), entries.key if entries else None, None)
        value = _Local((*path, "@items" if is_list else "@values"), entries.value if entries else None, None)
        if node.variable2:
            self._push(node.variable, key)
            self._push(node.variable2, value)
        else:
            self._push(node.variable, value if is_list else key)

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _copy(self, node: Node, other: Node) -> None:
        size, entries = self._size(other), self._entries_of(other)
        if size is not None:
            self._sizes[node] = size
        if entries is not None:
            self._entries[node] = entries

    def _entries_of(self, node: Node) -> _Entries | None:
        found = self._entries.get(node)
        local = self._local(node)
        return found or (local.entries if local else None)

    def _known(self, node: Node) -> Known:
        path = self._path(node)
        value = node.value if isinstance(node, Literal) else None
        return Known(node.kind, () if path[:1] == (ACCU,) else path, self._size(node), value, _bounded)

    def _size(self, node: Node) -> Size | None:
        known = self._sizes.get(node) or _literal_size(node)
        if known is not None:
            return known
        bounded = _bounded(self._path(node))
        if bounded is not None:
            self._sizes[node] = bounded
            return bounded
        if _is_scalar(node.kind):
            return _ONE
        local = self._local(node)
        return local.size if local else None


_VISITS: Final[dict[type, Callable[[_Coster, Any], _Costing]]] = {
    Select: _Coster.select,
    Call: _Coster.call,
    Items: _Coster.items,
    Entries: _Coster.entries,
    Fold: _Coster.fold,
}


def _literal_size(node: Node) -> Size | None:
    if isinstance(node, Literal):
        count = len(node.value) if isinstance(node.value, str | bytes) else 1
    elif isinstance(node, Items):
        count = len(node.items)
    elif isinstance(node, Entries):
        count = len(node.entries)
    else:
        return None
    return Size(count, count)


def _is_scalar(kind: Type) -> bool:
    while kind.name == "optional_type":
        kind = kind.params[0]
    return kind in _SCALARS
