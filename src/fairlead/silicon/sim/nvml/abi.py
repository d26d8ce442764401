"""Implements nvidia-ml-py's calling convention: arguments in, results through pointers, an NVML code back.

`nvidia-ml-py` passes `byref(x)`, `pointer(x)`, buffers, ctypes integers and opaque handles, as it would to the C
library. Handles are numbers that name what they stand for, so a stale one is noticed and none has to be kept.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

# nvmlReturn_t, by the names of the header nvidia-ml-py mirrors.
SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
GPU_IS_LOST = 15
RESET_REQUIRED = 16
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999


class RefusedError(Exception):
    """The function answers with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Kind(enum.IntEnum):
    """What a handle names."""

    GPU = 1
    MIG = 2
    GPU_INSTANCE = 3
    COMPUTE_INSTANCE = 4
    EVENT_SET = 5
    SAMPLE = 6


def target(pointer: Any) -> Any:
    """Return the object behind `byref(x)`, `pointer(x)` or an array passed as itself.

    Raises:  RefusedError: NULL.
    """
    if pointer is None:
        raise RefusedError(INVALID_ARGUMENT)
    if hasattr(pointer, "_obj"):
        return pointer._obj
    return pointer.contents if hasattr(pointer, "contents") else pointer


def put(pointer: Any, value: int) -> None:
    """Store a number behind a pointer."""
    target(pointer).value = value


def fill(pointer: Any, **fields: int | bytes) -> None:
    """Store fields of the struct behind a pointer."""
    struct = target(pointer)
    for name, value in fields.items():
        setattr(struct, name, value)


def put_text(buffer: Any, size: Any, text: str) -> None:
    """Store a NUL-terminated string.

    Raises:  RefusedError: it does not fit.
    """
    data = text.encode()
    if len(data) >= number(size):
        raise RefusedError(INSUFFICIENT_SIZE)
    buffer.value = data


def number(argument: Any) -> int:
    """Return an integer argument, ctypes or not."""
    return int(argument.value if hasattr(argument, "value") else argument)


def text(argument: Any) -> str:
    """Return a string argument.

    Raises:  RefusedError: NULL.
    """
    data = argument.value if hasattr(argument, "value") else argument
    if data is None:
        raise RefusedError(INVALID_ARGUMENT)
    return data.decode() if isinstance(data, bytes) else str(data)


def _handle(kind: Kind, parts: tuple[int, ...]) -> int:
    value = kind << 36
    for place, part in enumerate(parts):
        value |= part << (24 - 12 * place)
    return value


def put_handle(pointer: Any, kind: Kind, *parts: int) -> None:
    """Store an opaque handle behind a pointer; `parts` are up to three numbers below 4096."""
    ctypes.cast(ctypes.byref(target(pointer)), ctypes.POINTER(ctypes.c_void_p))[0] = _handle(kind, parts)


def put_handle_at(array: Any, place: int, kind: Kind, *parts: int) -> None:
    """Store an opaque handle in an array; the caller's array must be long enough, as for the C library."""
    slots = ctypes.cast(ctypes.byref(target(array)), ctypes.POINTER(ctypes.c_void_p))
    slots[place] = _handle(kind, parts)


def fill_handle(pointer: Any, name: str, kind: Kind, *parts: int) -> None:
    """Store an opaque handle in a field of the struct behind a pointer."""
    struct = target(pointer)
    setattr(struct, name, ctypes.cast(_handle(kind, parts), type(getattr(struct, name))))


def parts_of(handle: Any) -> tuple[Kind, int, int, int]:
    """Return what a handle names.

    Raises:  RefusedError: NULL, or no handle of ours.
    """
    value = ctypes.cast(handle, ctypes.c_void_p).value or 0
    try:
        kind = Kind(value >> 36)
    except ValueError:
        raise RefusedError(INVALID_ARGUMENT) from None
    return kind, value >> 24 & 0xFFF, value >> 12 & 0xFFF, value & 0xFFF
