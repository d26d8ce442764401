"""Compiles a checked expression into functions of a frame.

Each node becomes a plan: a constant, a chain of fields and indices that may still grow, or a function. As in the
reference, literals of constants and conversions of constants are constants, and cost nothing.
Source: cel-go interpreter/planner.go and decorators.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from fairlead.plan.cel import descent
from fairlead.plan.cel.functions import operator, table, text
from fairlead.plan.cel.grammar.macro import ACCU
from fairlead.plan.cel.grammar.node import Call, Entries, Fold, Ident, Items, Literal, Node, Select
from fairlead.plan.cel.problem import Wrong
from fairlead.plan.cel.running import attribute, calls, charge, loop, shortcut
from fairlead.plan.cel.running.attribute import Chain, Step
from fairlead.plan.cel.running.frame import FIRST_FREE, Run
from fairlead.plan.cel.value import Failed, UInt, Value, to_key

_Building = Generator[Node, "Plan", "Plan"]
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_PARSERS: Final = frozenset(
    {"quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "cidr", "isCIDR", "url", "isURL", "format.named"}
)
_PATTERNS: Final = frozenset({"matches", "find", "findAll"})
_ORDERS: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
_LITERAL_KINDS: Final = frozenset({bool, int, UInt, float, str})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node becomes; exactly one of the three."""

    constant: tuple[Value] | None = None
    chain: Chain | None = None
    function: Run | None = None

    @property
    def run(self) -> Run:
        """The function of it, whatever it is."""
        if self.chain is not None:
            return attribute.compiled(self.chain)
        if self.function is not None:
            return self.function
        return calls.constant(self.constant[0] if self.constant else None)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression, and how many places its frames have for variables."""

    run: Run
    places: int


def build(root: Node, release: str) -> Program:
    """Return the compiled expression. Raises: Wrong."""
    builder = _Builder(release)
    plan = descent.descend(builder.visit, root)
    return Program(plan.run, builder.places)


class _Builder:
    def __init__(self, release: str) -> None:
        self._release = release
        self._scopes: list[dict[str, Plan]] = []
        self._accus: list[int] = []
        self.places = 0

    def visit(self, node: Node) -> _Building:
        """Return the node's plan, asking for those of the nodes below it."""
        if isinstance(node, Literal):
            return Plan(constant=(node.value,))
        if isinstance(node, Ident):
            return self._ident(node)
        return (yield from _VISITS[type(node)](self, node))

    def _place(self) -> int:
        self.places += 1
        return FIRST_FREE + self.places - 1

    def _ident(self, node: Ident) -> Plan:
        if node.constant is not None:
            return Plan(constant=(node.constant,))
        for scope in reversed(self._scopes):
            if node.name in scope:
                return scope[node.name]
        return Plan(chain=Chain(node.at, is_device=True))

    def select(self, node: Select) -> _Building:
        """Plan a field."""
        if node.constant is not None:
            return Plan(constant=(node.constant,))
        operand = yield node.operand
        step = Step(node.at, node.field, is_test=node.is_test)
        made = Plan(chain=_chain(operand, node.at).then(step))
        # What has() returns is no chain that may grow.
        return Plan(function=made.run) if node.is_test else made

    def call(self, node: Call) -> _Building:
        """Plan a call."""
        operands = node.operands()
        if self._is_append(node):
            item = yield node.args[1].children()[0]
            cost = 2 if item.constant is not None else 2 + charge.LIST_BASE
            return Plan(function=loop.appended(self._accus[-1], item.run, cost))
        plans: list[Plan] = []
        for operand in operands:
            plans.append((yield operand))  # noqa: PERF401  a comprehension cannot yield
        special = _SPECIALS.get(node.function)
        made = special(node, plans) if special is not None else None
        return made or self._ordinary(node, plans)

    def _is_append(self, node: Call) -> bool:
        if node.function != "_+_" or not self._accus:
            return False
        first, second = node.args
        is_accu = isinstance(first, Ident) and first.name == ACCU
        return is_accu and isinstance(second, Items) and len(second.items) == 1 and not second.optional

    def _ordinary(self, node: Call, plans: list[Plan]) -> Plan:
        overload = node.overloads[0] if len(node.overloads) == 1 else ""
        cost = charge.of(node.function, overload, self._release)
        function = calls.function_of(node, self._release)
        if node.function in _CONVERSIONS and plans[0].constant is not None:
            return Plan(constant=(_folded(node, function, plans[0].constant[0]),))
        if node.function == "cel.@mapInsert":
            return Plan(function=calls.inserting([plan.run for plan in plans], self._accus[-1], node.at))
        short = _short_way(node, plans, overload, cost)
        if short is None and node.function in _PARSERS and all(plan.constant is not None for plan in plans):
            values = [plan.constant[0] for plan in plans if plan.constant is not None]
            short = shortcut.known_call(function, values, cost, node.at)
        # What is planned with any number of arguments ends with the first error.
        is_many = node.function == "format" or _pattern_of(node, plans) is not None
        is_open = is_many or (not overload and node.function not in operator.BINARY and node.function[0] != "@")
        runs = [plan.run for plan in plans]
        return Plan(function=short or calls.called(function, runs, cost, node.at, is_open=is_open))

    def items(self, node: Items) -> _Building:
        """Plan a list."""
        plans: list[Plan] = []
        for item in node.items:
            plans.append((yield item))  # noqa: PERF401  a comprehension cannot yield
        constants = [plan.constant[0] for plan in plans if plan.constant is not None]
        if len(constants) == len(plans) and not node.optional:
            return Plan(constant=(tuple(constants),))
        return Plan(function=calls.listed([plan.run for plan in plans], node.optional, node.at))

    def entries(self, node: Entries) -> _Building:
        """Plan a map."""
        plans: list[tuple[Plan, Plan]] = []
        for key, value in node.entries:
            plans.append(((yield key), (yield value)))
        flat = [plan.constant for pair in plans for plan in pair]
        if all(flat) and not node.optional:
            try:
                return Plan(constant=({to_key(one.constant[0]): other.constant[0] for one, other in plans},))  # type: ignore[index]  # all are there
            except Failed as error:
                raise Wrong(error.message, node.at) from None
        return Plan(function=calls.mapped([(key.run, value.run) for key, value in plans], node.optional, node.at))

    def fold(self, node: Fold) -> _Building:
        """Plan a comprehension."""
        if isinstance(node.condition, Literal) and node.condition.value is False:
            return (yield from self._bind(node))
        over = yield node.over
        start = _start_of(node)
        first = self._place()
        second = self._place() if node.variable2 else 0
        accu = self._place()
        scope = {node.variable: Plan(chain=Chain(node.at, start=loop.variable(first)))}
        if second:
            scope[node.variable2] = Plan(chain=Chain(node.at, start=loop.variable(second)))
        self._accus.append(accu)
        self._scopes.append({ACCU: Plan(chain=Chain(node.at, start=loop.accumulator(accu))), **scope})
        made = yield from self._looped(node, over.run, (first, second, accu), start)
        self._scopes.pop()
        self._accus.pop()
        return made

    def _looped(self, node: Fold, over: Run, places: tuple[int, int, int], start: Value) -> _Building:
        if isinstance(node.condition, Call) and isinstance(node.step, Call):
            test = yield node.step.args[1]
            is_all = node.step.function == "_&&_"
            return Plan(function=loop.quantifier(over, test.run, places[:2], node.over.at, is_all=is_all))
        step = yield node.step
        # The loop's own variables are not known in its result, which is made of the value so far alone.
        result = yield node.result
        return Plan(function=loop.collected(over, step.run, result.run, places, start, node.over.at))

    def _bind(self, node: Fold) -> _Building:
        init = yield node.init
        accu = self._place()
        # The place is read through a function, so that the value is made where it is first asked for.
        self._scopes.append({node.accu: Plan(chain=Chain(node.at, start=loop.lazy(accu, init.run)))})
        body = yield node.result
        self._scopes.pop()
        return Plan(function=loop.bound(body.run, accu))


_VISITS: Final[dict[type, Callable[[_Builder, Any], _Building]]] = {
    Select: _Builder.select,
    Call: _Builder.call,
    Items: _Builder.items,
    Entries: _Builder.entries,
    Fold: _Builder.fold,
}


def _start_of(node: Fold) -> Value:
    if isinstance(node.init, Literal):
        return node.init.value
    return () if isinstance(node.init, Items) else {}


def _chain(plan: Plan, at: int) -> Chain:
    """Return the chain that goes on from a plan."""
    return plan.chain if plan.chain is not None else Chain(at, start=plan.run)


def _conditional(node: Call, plans: list[Plan]) -> Plan:
    condition, truthy, falsy = plans
    branches = (condition.run, _branch(truthy, node.at), _branch(falsy, node.at))
    return Plan(chain=Chain(node.at, branches=branches))


def _branch(plan: Plan, at: int) -> Chain:
    return plan.chain if plan.chain is not None else Chain(at, start=plan.run)


def _index(node: Call, plans: list[Plan]) -> Plan:
    holder, key = plans
    is_optional = node.function != "_[_]"
    if key.constant is not None and type(key.constant[0]) in _LITERAL_KINDS:
        step = Step(node.at, key.constant[0], is_optional=is_optional)
    else:
        # The key's own start is not paid for: the step is.
        index = attribute.compiled(key.chain, 0) if key.chain is not None else key.run
        step = Step(node.at, index=index, is_optional=is_optional)
    return Plan(chain=_chain(holder, node.at).then(step))


def _logic(node: Call, plans: list[Plan]) -> Plan:
    end = node.function == "_||_"
    return Plan(function=calls.logic([plan.run for plan in plans], node.at, end=end))


def _or(node: Call, plans: list[Plan]) -> Plan:
    is_value = node.function == "orValue"
    return Plan(function=calls.otherwise(plans[0].run, plans[1].run, node.at, is_value=is_value))


def _membership(node: Call, plans: list[Plan]) -> Plan | None:
    """Plan `in` over a list of constants, which costs nothing."""
    listed = plans[1].constant
    if node.overloads != ["in_list"] or listed is None:
        return None
    if not listed[0]:
        return Plan(constant=(False,))
    if any(type(item) not in _LITERAL_KINDS for item in listed[0]):
        return None
    return Plan(function=calls.member(plans[0].run, frozenset(map(to_key, listed[0])), node.at))


_SPECIALS: Final = {
    "_?_:_": _conditional,
    "_[_]": _index,
    "_[?_]": _index,
    "_?._": _index,
    "_&&_": _logic,
    "_||_": _logic,
    "or": _or,
    "orValue": _or,
    "@in": _membership,
}


def _short_way(node: Call, plans: list[Plan], overload: str, cost: charge.Cost) -> Run | None:
    """Return the function of a call that has a quicker one: of what most selectors are made of."""
    pattern = _pattern_of(node, plans)
    if pattern is not None:
        _hold_to_regex(node, pattern)
        return shortcut.matching(plans[0].run, pattern, node.at) if node.function == "matches" and cost != 1 else None
    if node.function in {"lowerAscii", "upperAscii", "trim"}:
        return shortcut.rewritten(table.FUNCTIONS[overload], plans[0].run, node.at)
    if len(plans) != 2 or plans[1].constant is None:
        return None
    constant = plans[1].constant[0]
    if node.function == "_==_" and type(constant) is str:
        return shortcut.equal_to_text(plans[0].run, constant, node.at)
    if node.function in _ORDERS and cost == 1 and type(constant) is int:
        return shortcut.ordered_to_number(operator.BINARY[node.function], plans[0].run, constant, node.at)
    return None


def _pattern_of(node: Call, plans: list[Plan]) -> str | None:
    """Return the regular expression of a call that has a constant one."""
    if node.function not in _PATTERNS or plans[1].constant is None:
        return None
    pattern = plans[1].constant[0]
    return pattern if isinstance(pattern, str) else None


def _folded(node: Call, function: calls.Function, value: Value) -> Value:
    try:
        return function(value)
    except Failed as error:
        raise Wrong(error.message, node.at) from None


def _hold_to_regex(node: Call, pattern: str) -> None:
    try:
        text.regex(pattern)
    except Failed as error:
        raise Wrong(error.message, node.at) from None
