"""Shows what the service answered: as a table in a notebook, every word of it escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

import msgspec

_MOST_ROWS: Final = 200
_LONGEST: Final = 300


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the API; unknown fields of a newer service are left out."""

    def _repr_html_(self) -> str:
        """Return it as a table of two columns."""
        rows = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return table(("", type(self).__name__), ((name, value) for name, value in rows if value not in (None, "", ())))


T_co = TypeVar("T_co", covariant=True)


class Listing(Sequence[T_co]):
    """Answers of one kind, as a sequence that a notebook shows as a table."""

    def __init__(self, items: Iterable[T_co], *, columns: Sequence[str]) -> None:
        """Take the items, and which of their fields a table shows; `a.b` is a field of a field."""
        self._items = tuple(items)
        self.columns = columns

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._items)

    def __iter__(self) -> Iterator[T_co]:
        """Yield them in their order."""
        return iter(self._items)

    @overload
    def __getitem__(self, place: int) -> T_co: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, place: int | slice) -> T_co | tuple[T_co, ...]:
        """Return one, or a part of them as a tuple."""
        return self._items[place]

    def __repr__(self) -> str:
        """Return a line for each."""
        return "[" + ",\n ".join(map(repr, self._items)) + "]"

    def _repr_html_(self) -> str:
        return table(self.columns, ([_reached(item, path) for path in self.columns] for item in self._items))


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table; what is from outside is text in it and never markup."""
    found = list(rows)
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in found[:_MOST_ROWS])
    more = f"<p>{len(found) - _MOST_ROWS} more</p>" if len(found) > _MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _reached(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = getattr(item, name)
    return item


def _cell(value: Any) -> str:
    text = _text(value)
    return html.escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case Mapping():
            return ", ".join(f"{key}: {_text(one)}" for key, one in value.items())
        case Record():
            return ", ".join(f"{name}={_text(getattr(value, name))}" for name in value.__struct_fields__)
        case str():
            return value
        case Sequence():
            return ", ".join(map(_text, value))
    return str(value)
