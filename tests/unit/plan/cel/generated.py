"""Makes expressions at random: mostly well typed, over every function there is, with some that are wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from fairlead.plan.cel import declare
from fairlead.plan.cel.celtype import Type

_A: Final = 'device.attributes["d.com"]'
_C: Final = 'device.capacity["d.com"]'
_TEXTS: Final = (
    "''",
    "'fish'",
    "'Fish and chips'",
    "'a,b,c'",
    "'d.com'",
    "'é∞x'",
    "'1.2.3'",
    "'x'",
    "r'a.b'",
    "'  pad '",
)
_LEAVES: Final[Mapping[str, tuple[str, ...]]] = {
    "bool": ("true", "false", f"{_A}.flag", "device.allowMultipleAllocations", f"has({_A}.text)", f"has({_A}.zz)"),
    "int": ("0", "1", "2", "-3", "9223372036854775807", "-9223372036854775808", f"{_A}.count", f"{_A}.missing"),
    "uint": ("0u", "1u", "7u", "18446744073709551615u"),
    "double": ("0.0", "1.5", "-2.0", "1e300", "3.0"),
    "string": (*_TEXTS, f"{_A}.text", "device.driver", f"{_A}.?zz.orValue('or')", f"{_A}['text']"),
    "bytes": ("b''", "b'fish'", "b'\\xff'"),
    "google.protobuf.Duration": ("duration('1h')", "duration('-1.5s')", "duration('0')"),
    "google.protobuf.Timestamp": ("timestamp('2020-02-29T12:00:00Z')", "timestamp(0)"),
    "kubernetes.Quantity": ("quantity('1Gi')", "quantity('500m')", "quantity('0')", f"{_C}.memory", f"{_C}.zz"),
    "kubernetes.Semver": ("semver('1.2.3')", "semver('v1.2', true)", "semver('2.0.0-rc.1+x')", f"{_A}.version"),
    "kubernetes.URL": ("url('https://a.example:80/p?q=1')", "url('/path')"),
    "net.IP": ("ip('10.1.2.3')", "ip('fe80::1')"),
    "net.CIDR": ("cidr('10.0.0.0/8')", "cidr('fe80::/10')"),
    "kubernetes.NamedFormat": ("format.dns1123Label()", "format.uuid()"),
    "dyn": (
        f"{_A}.text",
        f"{_A}.count",
        f"{_A}.flag",
        f"{_A}.version",
        f"{_A}.numbers",
        "dyn(1)",
        "dyn('a')",
        f"{_A}.zz",
    ),
    "null_type": ("null",),
}
_SCALARS: Final = ("bool", "int", "uint", "double", "string", "int", "string")
_OPERATORS: Final = {
    f"_{sign}_": sign for sign in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "&&", "||")
}
_UNARY: Final = {"!_": "!", "-_": "-"}
_DEEPEST: Final = 4


class Generator:
    """Makes expressions from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names: list[tuple[str, Type]] = []
        self._count = 0
        self._by_result: dict[str, list[declare.Overload]] = {}
        for overloads in declare.functions("").values():
            for one in overloads:
                if not one.function.startswith(("@s", "@n", "cel.")) and one.function not in {"_?_:_", "_[_]", "_[?_]"}:
                    self._by_result.setdefault(one.result.name, []).append(one)

    def expression(self) -> str:
        """Return an expression that should be a bool."""
        return self._of(Type("bool"), 0)

    def _of(self, kind: Type, depth: int) -> str:
        pick = self._random.random()
        if kind.name[0] == "$":
            kind = Type(self._random.choice(_SCALARS))
        if pick < 0.02:
            return self._of(Type(self._random.choice((*_SCALARS, "dyn"))), depth + 1)
        if pick < 0.08 and kind.name != "dyn":
            return self._leaf(Type("dyn"), depth)
        if depth >= _DEEPEST or pick < 0.15 + depth * 0.12:
            return self._leaf(kind, depth)
        makers: list[Callable[[Type, int], str]] = [self._call] * 5
        makers += [self._ternary, self._special, self._special, self._bind]
        return self._random.choice(makers)(kind, depth + 1)

    def _leaf(self, kind: Type, depth: int) -> str:
        fitting = [name for name, known in self._names if known == kind]
        if fitting and self._random.random() < 0.6:
            return self._random.choice(fitting)
        if kind.name == "list":
            return self._list(kind, depth)
        if kind.name == "map":
            count = self._random.randrange(3)
            keys = self._random.sample(
                ["'a'", "'b'", "'c'"] if kind.params[0].name == "string" else ["1", "2", "3"], count
            )
            return "{" + ", ".join(f"{key}: {self._of(kind.params[1], depth + 2)}" for key in keys) + "}"
        if kind.name == "optional_type":
            return self._random.choice(("optional.none()", f"optional.of({self._of(kind.params[0], depth + 1)})"))
        if kind.name == "type":
            return self._random.choice(("int", "string", "bool", f"type({self._leaf(Type('int'), depth)})"))
        return self._random.choice(_LEAVES[kind.name])

    def _list(self, kind: Type, depth: int) -> str:
        if self._random.random() < 0.15:
            return self._random.choice((f"{_A}.numbers", f"{_A}.names"))
        inner = kind.params[0] if kind.params[0].name[0] != "$" else Type(self._random.choice(_SCALARS))
        count = self._random.randrange(4)
        simple = self._random.random() < 0.5
        return (
            "[" + ", ".join(self._leaf(inner, 9) if simple else self._of(inner, depth + 2) for _ in range(count)) + "]"
        )

    def _call(self, kind: Type, depth: int) -> str:
        one = self._random.choice(self._by_result.get(kind.name, []) or self._by_result["bool"])
        bound = {name: Type(self._random.choice(_SCALARS)) for name in one.variables}
        if one.result.params and kind.params:
            for declared, wanted in zip(one.result.params, kind.params, strict=False):
                bound[declared.name] = wanted
        args = [self._of(_filled(arg, bound), depth) for arg in one.args]
        name = one.function
        if name in _OPERATORS:
            return f"({args[0]} {_OPERATORS[name]} {args[1]})"
        if name in _UNARY:
            return f"({_UNARY[name]}{args[0]})"
        if name == "@in":
            return f"({args[0]} in {args[1]})"
        if one.is_method:
            return f"{args[0]}.{name}({', '.join(args[1:])})"
        return f"{name}({', '.join(args)})"

    def _ternary(self, kind: Type, depth: int) -> str:
        condition = self._of(Type("bool"), depth)
        return f"({condition} ? {self._of(kind, depth)} : {self._of(kind, depth)})"

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _bind(self, kind: Type, depth: int) -> str:
        name, inner = self._fresh(), Type(self._random.choice(_SCALARS))
        value = self._of(inner, depth)
        self._names.append((name, inner))
        body = self._of(kind, depth)
        self._names.pop()
        return f"cel.bind({name}, {value}, {body})"

    def _special(self, kind: Type, depth: int) -> str:
        inner = Type(self._random.choice(_SCALARS))
        over = self._leaf(Type("list", (inner,)), depth)
        one, two = self._fresh(), self._fresh()
        if kind.name == "bool":
            macro = self._random.choice(("all", "exists", "exists_one"))
            if self._random.random() < 0.3:
                return self._scoped(f"{over}.{macro}({one}, {two}, ", [(one, Type("int")), (two, inner)], kind, depth)
            return self._scoped(f"{over}.{macro}({one}, ", [(one, inner)], kind, depth)
        if kind.name == "list":
            return self._list_macro(kind, depth, over, one, inner)
        if kind.name == "optional_type":
            return f"{_A}[?{self._leaf(Type('string'), depth)}]"
        if kind.name in {"int", "string", "dyn"}:
            holder = self._random.choice((f"[{self._leaf(kind, 9)}]", f"{_A}.numbers"))
            return f"{holder}[{self._random.choice(('0', '1', self._of(Type('int'), depth)))}]"
        return self._leaf(kind, depth)

    def _list_macro(self, kind: Type, depth: int, over: str, one: str, inner: Type) -> str:
        pick = self._random.random()
        if pick < 0.5:
            return self._scoped(f"{over}.map({one}, ", [(one, inner)], kind.params[0], depth)
        if pick < 0.7:
            same = self._leaf(kind, depth)
            item = kind.params[0] if kind.params[0].name[0] != "$" else Type("int")
            return self._scoped(f"{same}.filter({one}, ", [(one, item)], Type("bool"), depth)
        if pick < 0.85:
            same = self._leaf(kind, depth)
            return self._scoped(f"{same}.sortBy({one}, ", [(one, kind.params[0])], Type("int"), depth)
        other = self._fresh()
        return self._scoped(
            f"{over}.transformList({one}, {other}, ", [(one, Type("int")), (other, inner)], kind.params[0], depth
        )

    def _scoped(self, opening: str, names: list[tuple[str, Type]], kind: Type, depth: int) -> str:
        self._names += names
        body = self._of(kind, depth)
        del self._names[-len(names) :]
        return f"{opening}{body})"


def _filled(kind: Type, bound: Mapping[str, Type]) -> Type:
    if kind.name in bound:
        return bound[kind.name]
    return Type(kind.name, tuple(_filled(param, bound) for param in kind.params))
