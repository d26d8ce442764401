"""Estimates what one call costs and how large what it returns may be.

Source: as of `estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from fairlead.plan.cel.celtype import Type
from fairlead.plan.cel.running.charge import OLD_RELEASE
from fairlead.plan.cel.value import Value

MANY: Final = 2**64 - 1
"""No bound."""


def _scaled(count: int, factor: float) -> int:
    exact = float(count) * factor
    return MANY if exact >= 2.0**64 else math.ceil(exact)


class Size(NamedTuple):
    """The least and the most of a size or a cost."""

    least: int
    most: int

    def plus(self, other: Size) -> Size:
        """Return the sum."""
        return Size(min(self.least + other.least, MANY), min(self.most + other.most, MANY))

    def times(self, other: Size) -> Size:
        """Return the product."""
        return Size(min(self.least * other.least, MANY), min(self.most * other.most, MANY))

    def scaled(self, factor: float) -> Size:
        """Return a multiple, rounded up."""
        return Size(_scaled(self.least, factor), _scaled(self.most, factor))

    def union(self, other: Size) -> Size:
        """Return what holds both."""
        return Size(min(self.least, other.least), max(self.most, other.most))


UNKNOWN: Final = Size(0, MANY)
_ONE: Final = Size(1, 1)


class Known(NamedTuple):
    """What is known of an operand: its type, its path from `device`, its size, and its value if it is a literal."""

    kind: Type
    path: tuple[str, ...]
    computed: Size | None
    value: Value
    bounded: Callable[[tuple[str, ...]], Size | None]

    @property
    def size(self) -> Size:
        """The size by all that is known."""
        return self.computed or self.bounded(self.path) or UNKNOWN

    def item(self) -> Known | None:
        """Return what is known of a list's item, or of a map's key; None: the type has no parts."""
        if not self.kind.params:
            return None
        return Known(self.kind.params[0], (*self.path, "@items") if self.path else (), None, None, self.bounded)


Estimated = tuple[Size, Size | None]
_Estimator = Callable[[Known | None, list[Known]], Estimated | None]


def estimated(function: str, overload: str, target: Known | None, args: list[Known], release: str) -> Estimated | None:
    """Return cost and size of a call by what the libraries say of it; None: they say nothing."""
    by_overload = _BY_OVERLOAD.get(overload)
    if by_overload is not None:
        return by_overload(target, args)
    if function == "includes" and release == OLD_RELEASE:
        return Size(_INCLUDED, _INCLUDED), None
    if overload == "cidr_ip" or function in _FIXED:
        return _ONE, None
    found = _BY_FUNCTION.get(function)
    if function in {"containsIP", "containsCIDR"}:
        return _contained(function, overload, args)
    return None if found is None else found(target, args)


_INCLUDED: Final = 48
"""Items of the longest list that `includes` of 1.36 takes."""


def _parsed(_target: Known | None, args: list[Known]) -> Estimated | None:
    return (args[0].size.scaled(0.1), None) if args else None


def _url(_target: Known | None, args: list[Known]) -> Estimated | None:
    return (args[0].size.scaled(0.1), args[0].size) if len(args) == 1 else None


def _canonical(_target: Known | None, args: list[Known]) -> Estimated | None:
    return (args[0].size.scaled(0.2), None) if args else None


def _passed(target: Known | None, _args: list[Known]) -> Estimated | None:
    return None if target is None else (target.size.scaled(0.1), target.size)


def _traversed(target: Known | None, _args: list[Known]) -> Estimated | None:
    if target is None:
        return None
    item = target.item()
    if item is None:
        return target.size.scaled(0.1), None
    each = _ONE
    if item.kind.name in {"string", "bytes"}:
        each = each.plus(item.size.scaled(0.1))
    return target.size.times(each), None


def _included(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None or target.item() is not None:
        return _traversed(target, args)
    return target.size, None


def _replaced(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None or len(args) < 2:
        return None
    text, old, new = target.size, args[0].size, args[1].size
    count_most, kept_most = _most_replaced(text, old, new)
    if old.most == 0:
        count_least, kept_least = min(text.least + 1, MANY), text.least
    elif old.most <= new.least:
        count_least, kept_least = 0, 0
    else:
        count_least, kept_least = math.ceil(float(text.least) / float(old.most)), 0
    count = Size(count_least, count_most)
    return text.scaled(0.2), count.times(new).plus(Size(kept_least, kept_most))


def _most_replaced(text: Size, old: Size, new: Size) -> tuple[int, int]:
    if old.least == 0:
        return min(text.most + 1, MANY), text.most
    if new.most <= old.least:
        return 0, text.most
    return min(math.ceil(float(text.most) / float(old.least)), MANY), 0


def _split(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None:
        return None
    most = target.size.most
    if len(args) > 1 and type(args[1].value) is int:
        most = args[1].value % 2**64
    return target.size.scaled(0.2), Size(0, most)


def _joined(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None:
        return None
    listed = target.size
    item = target.item()
    size = Size(0, 0) if item is None else listed.times(item.size)
    if args:
        gaps = Size(max(listed.least - 1, 0), max(listed.most - 1, 0))
        size = size.plus(args[0].size.times(gaps))
    return size.scaled(0.1), size


def _found(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None or not args:
        return None
    return _pattern(target, args[0]), Size(0, target.size.most)


def _pattern(text: Known, pattern: Known) -> Size:
    return _searched(text.size, pattern.size)


def _validated(_target: Known | None, args: list[Known]) -> Estimated | None:
    return (args[0].size.scaled(0.1).scaled(128 * 0.25), None) if args else None


def _contained(function: str, overload: str, args: list[Known]) -> Estimated | None:
    if not args:
        return None
    packed = Size(4, 16)
    cost = packed.plus(packed).scaled(0.1)
    if function == "containsCIDR":
        cost = cost.plus(packed.scaled(0.1)).plus(_ONE)
    if overload in {"cidr_contains_ip_string", "cidr_contains_cidr_string"}:
        cost = cost.plus(args[0].size.scaled(0.1))
    return cost, None


_STRUCTS: Final = frozenset({"kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"})


def _equal(_target: Known | None, args: list[Known]) -> Estimated | None:
    one, other = args
    if one.kind != other.kind:
        return None
    if one.kind.name in _STRUCTS:
        return _ONE, None
    if one.kind.name == "kubernetes.NamedFormat":
        return Size(1, 64).scaled(0.1), None
    if one.kind.name == "kubernetes.URL":
        size = other.computed or _ONE
        return Size(1, size.most).scaled(0.1), None
    return None


def _made(factor: float, size: Size) -> Estimated:
    return size.scaled(factor).plus(Size(11, 11)), size


def _literal_count(known: Known, default: int) -> int:
    return max(known.value, 0) if type(known.value) is int else default


def _sliced(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None or len(args) != 2:
        return None
    count = (_literal_count(args[1], target.size.most) - _literal_count(args[0], 0)) % 2**64
    return _made(1, Size(count, count))


def _ranged(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is not None or len(args) != 1:
        return None
    count = _literal_count(args[0], MANY)
    return _made(1, Size(count, count))


def _reversed(target: Known | None, _args: list[Known]) -> Estimated | None:
    return None if target is None else _made(1, target.size)


def _flattened(target: Known | None, args: list[Known]) -> Estimated | None:
    if target is None:
        return None
    return _made(float(_literal_count(args[0], MANY) if args else 1), target.size)


def _distinct(target: Known | None, _args: list[Known]) -> Estimated | None:
    return None if target is None else _made(2.0, target.size.times(target.size))


def _sorted(kind: str) -> _Estimator:
    factor = 2.1 if kind in {"string", "bytes"} else 2.0

    def cost(target: Known | None, args: list[Known]) -> Estimated | None:
        keys = args[0] if args else target
        return None if keys is None else _made(factor, keys.size.times(keys.size))

    return cost


def _sets(factor: float) -> _Estimator:
    def cost(_target: Known | None, args: list[Known]) -> Estimated | None:
        if len(args) != 2:
            return None
        product = args[0].size.times(args[1].size).scaled(factor)
        return product.plus(_ONE), None

    return cost


_KINDS: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_BY_OVERLOAD: Final[dict[str, _Estimator]] = {
    "list_slice": _sliced,
    "list_flatten": _flattened,
    "list_flatten_int": _flattened,
    "lists_range": _ranged,
    "list_reverse": _reversed,
    "list_distinct": _distinct,
    **{f"list_{kind}_sort": _sorted(kind) for kind in _KINDS},
    **{f"list_{kind}_sortByAssociatedKeys": _sorted(kind) for kind in _KINDS},
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}
_BY_FUNCTION: Final[dict[str, _Estimator]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversed),
    "includes": _included,
    "url": _url,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _passed),
    "replace": _replaced,
    "split": _split,
    "join": _joined,
    **dict.fromkeys(("find", "findAll"), _found),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _parsed),
    "ip.isCanonical": _canonical,
    "validate": _validated,
    "_==_": _equal,
}
_FIXED: Final = frozenset(
    [
        "masked",
        "prefixLength",
        "family",
        "isUnspecified",
        "isLoopback",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isGlobalUnicast",
        "format.named",
        "sign",
        "asInteger",
        "isInteger",
        "asApproximateFloat",
        "isGreaterThan",
        "isLessThan",
        "compareTo",
        "add",
        "sub",
        "major",
        "minor",
        "patch",
        "getScheme",
        "getHostname",
        "getHost",
        "getPort",
        "getEscapedPath",
        "getQuery",
    ]
)
_COMPARISONS: Final = frozenset(
    {"equals", "not_equals"}
    | {
        f"{name}_{kind}"
        for name in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    }
)


def standard(overload: str, target: Known | None, args: list[Known], release: str) -> Estimated:
    """Return cost and size of a call of the language itself. Sizes are those computed, never the libraries' guesses."""
    sizes = [arg.computed or UNKNOWN for arg in args]
    if overload in _COMPARISONS:
        most = min(sizes[0].most, sizes[1].most)
        return Size(1 if most else 0, most).scaled(0.1), None
    if overload in {"add_string", "add_bytes", "add_list"}:
        size = sizes[0].plus(sizes[1])
        return (_ONE if overload == "add_list" else size.scaled(0.1)), size
    found = _text(overload, target, sizes, release)
    return found or (_ONE, None)


def _text(overload: str, target: Known | None, sizes: list[Size], release: str) -> Estimated | None:
    if overload == "in_list":
        return sizes[1].scaled(1), None
    if overload == "matches" and release != OLD_RELEASE:
        return _searched(sizes[0], sizes[1]), None
    if target is None:
        return _converted(overload, sizes)
    own = target.computed or UNKNOWN
    costs: dict[str, Callable[[], Size]] = {
        "string_format": lambda: own.scaled(0.1),
        "starts_with_string": lambda: sizes[0].scaled(0.1),
        "ends_with_string": lambda: sizes[0].scaled(0.1),
        "matches_string": lambda: _searched(own, sizes[0]),
        "contains_string": lambda: own.scaled(0.1).times(sizes[0].scaled(0.1)),
    }
    return (costs[overload](), None) if overload in costs else None


def _searched(text: Size, pattern: Size) -> Size:
    return text.plus(_ONE).scaled(0.1).times(pattern.scaled(0.25))


def _converted(overload: str, sizes: list[Size]) -> Estimated | None:
    if overload == "string_to_bytes":
        return sizes[0].scaled(0.1), Size(sizes[0].least, sizes[0].most * 4 % 2**64)
    if overload == "bytes_to_string":
        return sizes[0].scaled(0.1), Size(sizes[0].least // 4, sizes[0].most)
    if overload == "strings_quote":
        return sizes[0].scaled(0.1), Size((sizes[0].least + 2) % 2**64, (sizes[0].most * 2 + 2) % 2**64)
    return None
