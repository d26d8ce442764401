"""Compiles a checked expression into functions of a frame.

Each node becomes a plan: a constant, a chain of fields and indices that may still grow, or a function. As in the
reference, literals of constants and conversions of constants are constants, and cost nothing.
Source: cel-go interpreter/planner.go and decorators.go, v0.29.2.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from fairlead.plan.cel import attribute, calls, charge, descent, loop
from fairlead.plan.cel.attribute import Chain, Step
from fairlead.plan.cel.frame import FIRST_FREE, Run
from fairlead.plan.cel.functions import operator, table
from fairlead.plan.cel.macro import ACCU
from fairlead.plan.cel.node import Call, Entries, Fold, Ident, Items, Literal, Node, Select
from fairlead.plan.cel.problem import Wrong
from fairlead.plan.cel.value import Failed, UInt, Value, to_key

_Building = Generator[Node, "Plan", "Plan"]
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_PARSERS: Final = frozenset(
    {"quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "cidr", "isCIDR", "url", "isURL", "format.named"}
)
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
        return (yield from _VISITS[type(node)](self, node))

    def _place(self) -> int:
        self.places += 1
        return FIRST_FREE + self.places - 1

    def literal(self, node: Literal) -> _Building:
        """Plan a constant."""
        return Plan(constant=(node.value,))
        yield

    def ident(self, node: Ident) -> _Building:
        """Plan a variable."""
        if node.constant is not None:
            return Plan(constant=(node.constant,))
        for scope in reversed(self._scopes):
            if node.name in scope:
                return scope[node.name]
        return Plan(chain=Chain(node.at, is_device=True))
        yield

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
            plans.append((yield operand))
        special = _SPECIALS.get(node.function)
        made = special(node, plans) if special is not None else None
        return made or self._ordinary(node, plans)

    def _is_append(self, node: Call) -> bool:
        if node.function == "cel.@mapInsert":
            return False
        if node.function != "_+_" or len(self._accus) == 0:
            return False
        first, second = node.args
        is_accu = isinstance(first, Ident) and first.name == ACCU
        return is_accu and isinstance(second, Items) and len(second.items) == 1 and not second.optional

    def _ordinary(self, node: Call, plans: list[Plan]) -> Plan:
        overload = node.overloads[0] if len(node.overloads) == 1 else ""
        cost = charge.of(node.function, overload, self._release)
        function = calls.function_of(node, self._release)
        if node.function in _CONVERSIONS and len(plans) == 1 and plans[0].constant is not None:
            return Plan(constant=(_folded(node, function, plans[0].constant[0]),))
        if node.function in {"matches", "find", "findAll"} and plans[1].constant is not None:
            _hold_to_regex(node, plans[1].constant[0])
            if node.function == "matches" and not isinstance(cost, int) and isinstance(plans[1].constant[0], str):
                return Plan(function=calls.matching(plans[0].run, plans[1].constant[0], node.at))
        if node.function == "cel.@mapInsert":
            return Plan(function=calls.inserting([plan.run for plan in plans], self._accus[-1], node.at))
        if node.function in {"_==_", "_!=_"}:
            return Plan(function=_equality(node, plans, cost))
        constants = [plan.constant[0] for plan in plans if plan.constant is not None]
        if node.function in _PARSERS and len(constants) == len(plans):
            return Plan(function=calls.known_call(function, constants, cost, node.at))
        if node.function in {"lowerAscii", "upperAscii", "trim"}:
            return Plan(function=calls.rewritten(table.FUNCTIONS[overload], plans[0].run, node.at))
        if node.function in _ORDERS and cost == 1 and plans[1].constant is not None and type(plans[1].constant[0]) is int:
            return Plan(function=calls.ordered_to_number(function, plans[0].run, plans[1].constant[0], node.at))
        is_pattern = node.function == "format" or (
            node.function in {"find", "findAll"} and plans[1].constant is not None
        )
        is_open = is_pattern or (not overload and node.function not in operator.BINARY)
        runs = [plan.run for plan in plans]
        return Plan(function=calls.called(function, runs, cost, node.at, is_open=is_open))

    def items(self, node: Items) -> _Building:
        """Plan a list."""
        plans: list[Plan] = []
        for item in node.items:
            plans.append((yield item))
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


_VISITS: Final = {
    Literal: _Builder.literal,
    Ident: _Builder.ident,
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


def _equality(node: Call, plans: list[Plan], cost: charge.Cost) -> Run:
    is_equal = node.function == "_==_"
    if plans[1].constant is not None and type(plans[1].constant[0]) is str and is_equal:
        return calls.equal_to_text(plans[0].run, plans[1].constant[0], node.at)
    return calls.called(calls.equals if is_equal else calls.differs, [plan.run for plan in plans], cost, node.at)


def _folded(node: Call, function: calls.Function, value: Value) -> Value:
    try:
        return function(value)
    except Failed as error:
        raise Wrong(error.message, node.at) from None


def _hold_to_regex(node: Call, pattern: Value) -> None:
    if isinstance(pattern, str):
        try:
            table.text.regex(pattern)
        except Failed as error:
            raise Wrong(error.message, node.at) from None


