"""Defines frozen values: dataclasses whose classes are quick to make, for commands that live a tenth of a second.

`dataclasses.dataclass` writes seven methods of each class as text and compiles them one by one: 0.9 ms a class, and
half a hundred classes are on the way of a short command. `frozen` has the standard library find the fields and make the
slots, and adds methods that are closures over them: 0.2 ms a class. `fields`, `replace`, `asdict`, `copy` and `pickle`
treat the result as what it is, a dataclass that is frozen, slotted and keyword-only. An instance takes half as long
again to make, so loops that make millions keep the standard library's decorator.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[T]) -> type[T]:
    """Return `cls` as a dataclass that is frozen, slotted and keyword-only; methods of its own stay."""
    own = {name for name, member in vars(cls).items() if member is not None}  # `__hash__` is None beside an `__eq__`
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    found = dataclasses.fields(made)  # type: ignore[arg-type]  # what dataclass() returned is one
    for name, method in (_making(made, found) | _comparing(found) | _guarding(found)).items():
        if name not in own:
            setattr(made, name, method)
    return made


def _making(made: type, found: Sequence[dataclasses.Field[Any]]) -> dict[str, Callable[..., Any]]:
    """Return `__init__`, and what `copy` and `pickle` call in its place."""
    # The slots' own setters: they pass by `__setattr__`, which refuses.
    setters = [(item.name, getattr(made, item.name).__set__) for item in found]
    names = {item.name for item in found}
    defaults = {item.name: item.default for item in found if item.default is not dataclasses.MISSING}
    factories = {item.name: item.default_factory for item in found if item.default_factory is not dataclasses.MISSING}
    after = getattr(made, "__post_init__", None)

    def __init__(self: object, **given: object) -> None:  # noqa: N807  it becomes the class's
        values = given
        if given.keys() != names:
            values = {**defaults, **{name: make() for name, make in factories.items() if name not in given}, **given}
            if values.keys() != names:
                raise TypeError(_mismatch(made, names, values))
        for name, put in setters:
            put(self, values[name])
        if after is not None:
            after(self)

    def __getstate__(self: object) -> dict[str, object]:  # noqa: N807  as above
        return {name: getattr(self, name) for name, _ in setters}

    def __setstate__(self: object, state: Mapping[str, object]) -> None:  # noqa: N807  as above
        for name, put in setters:
            put(self, state[name])

    return {"__init__": __init__, "__getstate__": __getstate__, "__setstate__": __setstate__}


def _mismatch(made: type, names: set[str], values: Mapping[str, object]) -> str:
    """Return what is wrong with the arguments, in the words of Python's own calls."""
    call = f"{made.__qualname__}.__init__()"
    unknown = [name for name in values if name not in names]
    if unknown:
        return f"{call} got an unexpected keyword argument {unknown[0]!r}"
    missing = ", ".join(repr(name) for name in sorted(names - values.keys()))
    return f"{call} missing required keyword-only arguments: {missing}"


def _comparing(found: Sequence[dataclasses.Field[Any]]) -> dict[str, Callable[..., Any]]:
    """Return `__eq__` and `__hash__` over the fields that compare."""
    compared = _reader([item.name for item in found if item.compare])
    hashed = _reader([item.name for item in found if (item.compare if item.hash is None else item.hash)])

    def __eq__(self: object, other: object) -> bool:  # noqa: N807  as above
        return compared(self) == compared(other) if self.__class__ is other.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807  as above
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _reader(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that reads fields as a tuple; in C where there are several."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _guarding(found: Sequence[dataclasses.Field[Any]]) -> dict[str, Callable[..., Any]]:
    """Return `__repr__`, and the refusals to assign and to delete."""
    shown = [item.name for item in found if item.repr]

    def __repr__(self: object) -> str:  # noqa: N807  as above
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({values})"

    def __setattr__(_self: object, name: str, _value: object) -> None:  # noqa: N807  as above
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(_self: object, name: str) -> None:  # noqa: N807  as above
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    return {"__repr__": __repr__, "__setattr__": __setattr__, "__delattr__": __delattr__}
