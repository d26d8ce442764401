"""Decodes JSON of others into typed values, with one error for whatever is wrong with it.

msgspec raises `RecursionError` for a document nested without end and `UnicodeDecodeError` for bytes that are not UTF-8,
neither of which is an `msgspec.MsgspecError`. Here both are, so that a reader which refuses the one refuses them all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes one type; msgspec prepares it once."""

    __slots__ = ("_decoder",)

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes | str) -> T:
        """Return the value. Raises: msgspec.MsgspecError: not JSON, not UTF-8, nested too deeply, or another type."""
        try:
            return self._decoder.decode(data)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error
        except RecursionError as error:
            raise msgspec.DecodeError("nested too deeply") from error


def decode(data: bytes | str, *, type: type[T]) -> T:  # noqa: A002 as msgspec's
    """Return the value, as `Decoder.decode`."""
    found: T = _DECODER(type).decode(data)
    return found


_DECODER: Final[Callable[[Any], Decoder[Any]]] = functools.lru_cache(maxsize=256)(Decoder)
"""Makes the decoder of a type once: a list has one type and thousands of documents."""
