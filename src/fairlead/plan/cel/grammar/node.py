"""Declares the nodes of an expression, as the parser makes them and the checker completes them.

Each node has `at`, the offset of its text; the checker sets `kind` and, on calls, `overloads`.
"""

from __future__ import annotations

from fairlead.plan.cel.celtype import DYN, Type
from fairlead.plan.cel.value import Value


class Node:
    """A part of an expression."""

    __slots__ = ("at", "kind")

    def __init__(self, at: int) -> None:
        self.at = at
        self.kind: Type = DYN

    def children(self) -> list[Node]:
        """Return the nodes below, in order."""
        return []

    def copy(self) -> Node:
        """Return the node again, with all below it."""
        raise NotImplementedError


class Literal(Node):
    """A constant."""

    __slots__ = ("value",)

    def __init__(self, at: int, value: Value) -> None:
        super().__init__(at)
        self.value = value

    def copy(self) -> Node:
        return Literal(self.at, self.value)


class Ident(Node):
    """A name; the checker makes constants of those that name types, in `constant`."""

    __slots__ = ("constant", "name")

    def __init__(self, at: int, name: str) -> None:
        super().__init__(at)
        self.name = name
        self.constant: Value = None

    def copy(self) -> Node:
        return Ident(self.at, self.name)


class Select(Node):
    """A field of an operand; `constant` as on a name, where the whole chain is one."""

    __slots__ = ("constant", "field", "is_test", "operand")

    def __init__(self, at: int, operand: Node, field: str, *, is_test: bool = False) -> None:
        super().__init__(at)
        self.operand = operand
        self.field = field
        self.is_test = is_test
        self.constant: Value = None

    def children(self) -> list[Node]:
        return [self.operand]

    def copy(self) -> Node:
        return Select(self.at, self.operand.copy(), self.field, is_test=self.is_test)


class Call(Node):
    """A function or operator over arguments, with a target where it is a method."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, at: int, function: str, args: list[Node], target: Node | None = None) -> None:
        super().__init__(at)
        self.function = function
        self.args = args
        self.target = target
        self.overloads: list[str] = []

    def operands(self) -> list[Node]:
        """Return the target, where there is one, and the arguments."""
        return self.args if self.target is None else [self.target, *self.args]

    def children(self) -> list[Node]:
        return self.operands()

    def copy(self) -> Node:
        target = None if self.target is None else self.target.copy()
        return Call(self.at, self.function, [arg.copy() for arg in self.args], target)


class Items(Node):
    """A list; `optional` has the places of `?` items."""

    __slots__ = ("items", "optional")

    def __init__(self, at: int, items: list[Node], optional: frozenset[int] = frozenset()) -> None:
        super().__init__(at)
        self.items = items
        self.optional = optional

    def children(self) -> list[Node]:
        return self.items

    def copy(self) -> Node:
        return Items(self.at, [item.copy() for item in self.items], self.optional)


class Entries(Node):
    """A map; `optional` has the places of `?` entries."""

    __slots__ = ("entries", "optional")

    def __init__(self, at: int, entries: list[tuple[Node, Node]], optional: frozenset[int] = frozenset()) -> None:
        super().__init__(at)
        self.entries = entries
        self.optional = optional

    def children(self) -> list[Node]:
        return [node for entry in self.entries for node in entry]

    def copy(self) -> Node:
        return Entries(self.at, [(key.copy(), value.copy()) for key, value in self.entries], self.optional)


class Fold(Node):
    """A comprehension: what every macro over a list or a map, and `cel.bind`, becomes."""

    __slots__ = ("accu", "condition", "init", "over", "result", "step", "variable", "variable2")

    def __init__(  # noqa: PLR0913  the nine parts of a comprehension
        self,
        at: int,
        over: Node,
        variable: str,
        *,
        variable2: str = "",
        accu: str,
        init: Node,
        condition: Node,
        step: Node,
        result: Node,
    ) -> None:
        super().__init__(at)
        self.over = over
        self.variable = variable
        self.variable2 = variable2
        self.accu = accu
        self.init = init
        self.condition = condition
        self.step = step
        self.result = result

    def children(self) -> list[Node]:
        return [self.over, self.init, self.condition, self.step, self.result]

    def copy(self) -> Node:
        return Fold(
            self.at,
            self.over.copy(),
            self.variable,
            variable2=self.variable2,
            accu=self.accu,
            init=self.init.copy(),
            condition=self.condition.copy(),
            step=self.step.copy(),
            result=self.result.copy(),
        )


def count(root: Node) -> int:
    """Return how many nodes there are, without recursion."""
    waiting, found = [root], 0
    while waiting:
        found += 1
        waiting.extend(waiting.pop().children())
    return found


def depth(root: Node) -> int:
    """Return how many nodes are below each other, without recursion."""
    waiting, deepest = [(root, 1)], 0
    while waiting:
        one, level = waiting.pop()
        deepest = max(deepest, level)
        waiting.extend((below, level + 1) for below in one.children())
    return deepest
