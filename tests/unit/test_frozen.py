"""`frozen` gives what the standard library's frozen, slotted, keyword-only dataclass gives, class by class."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.frozen import frozen

Maker = Callable[[type], type]
standard: Maker = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)


def _point(make: Maker) -> Any:
    class Point:
        """A place."""

        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, hash=False)
        note: str = dataclasses.field(default="", compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is below 0")

        def __str__(self) -> str:
            return f"({self.x}, {self.y})"

    return make(Point)


def _answer(call: Callable[[], object]) -> object:
    """Return what a call returns, or the kind of error it ends with."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  the kinds are compared
        return type(error)


ACTS: dict[str, Callable[[Any], object]] = {
    "repr": lambda point: repr(point(x=1, tags=["a"])).rpartition(".")[2],
    "str of its own": lambda point: str(point(x=1)),
    "equal": lambda point: point(x=1) == point(x=1, y=2, note="b"),
    "unequal": lambda point: point(x=1) == point(x=2),
    "of another class": lambda point: point(x=1) == (1, 2, [], ""),
    "hash": lambda point: hash(point(x=1, tags=["a"])) == hash(point(x=1, tags=["b"])),
    "a list for each": lambda point: point(x=1).tags is point(x=1).tags,
    "fields": lambda point: [item.name for item in dataclasses.fields(point)],
    "replace": lambda point: dataclasses.replace(point(x=1), y=5).y,
    "asdict": lambda point: dataclasses.asdict(point(x=1, note="b")),
    "copy": lambda point: copy.deepcopy(point(x=1, tags=["a"])) == point(x=1, tags=["a"]),
    "assign": lambda point: setattr(point(x=1), "x", 2),
    "delete": lambda point: delattr(point(x=1), "x"),
    "missing": lambda point: point(y=1),
    "unknown": lambda point: point(x=1, z=1),
    "by place": lambda point: point(1),
    "checked": lambda point: point(x=-1),
    "no dict": lambda point: vars(point(x=1)),
}


@pytest.mark.parametrize("act", ACTS)
def test_frozen_classes_answer_as_the_standard_librarys(act: str) -> None:
    expected = _answer(lambda: ACTS[act](_point(standard)))
    assert _answer(lambda: ACTS[act](_point(frozen))) == expected


@frozen
class Base:
    """A class to derive from; it stands in the module, where pickle finds it."""

    name: str


@frozen
class Derived(Base):
    """Has a field more."""

    size: int = 1


@frozen
class Own:
    """Has an `__eq__` of its own."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7


@frozen
class Empty:
    """Has no fields."""


def test_a_derived_class_has_the_fields_of_both() -> None:
    assert repr(Derived(name="a")) == "Derived(name='a', size=1)"
    assert Derived(name="a") != Base(name="a")


def test_pickles_come_back_equal() -> None:
    values = [Derived(name="a", size=3), Empty()]
    assert pickle.loads(pickle.dumps(values)) == values  # noqa: S301  our own bytes


def test_methods_of_the_class_itself_stay() -> None:
    assert Own(name="a") == Own(name="b")
    assert hash(Own(name="a")) == 7


def test_the_error_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"Derived.__init__\(\) got an unexpected keyword argument 'length'"):
        Derived(name="a", length=1)  # type: ignore[call-arg]  # that is what is tested
    with pytest.raises(TypeError, match="missing required keyword-only arguments: 'name'"):
        Derived(size=1)  # type: ignore[call-arg]  # as above
