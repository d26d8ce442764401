"""Records what NVML answers, call by call, and answers from such a record.

Both stand where `nvidia-ml-py` expects the loaded C library: it looks functions up by C name and passes ctypes values.
What goes in is kept as text; what comes out is kept as the bytes behind each pointer after the call. A handle is such
bytes as well, so a replay that gives the same handles is asked the same questions. Pointers that a call takes as input
and output (`version` fields, counts, buffers) are part of the question by their bytes before the call. A question that
comes again keeps its first and its last answer.

Names of boards (serial numbers, UUIDs) are in these bytes; `masking` replaces them in place, length for length.
"""

from __future__ import annotations

import base64
import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
_FUNCTION_NOT_FOUND: Final = 13
_SKIPPED: Final = frozenset({"nvmlEventSetWait", "nvmlEventSetWait_v2", "nvmlInit_v2", "nvmlShutdown"})
"""Calls that wait, or whose answer is nothing but their code; the replay answers them by itself."""
_TIMEOUT: Final = 10


class RecordingNVML:
    """Passes every call on to a library and remembers it."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            self.calls[f"{name}()"] = {"code": _FUNCTION_NOT_FOUND, "missing": True}
            raise
        if name in _SKIPPED or name == "nvmlErrorString":
            return _plain(function)

        def call(*arguments: Any) -> int:
            asked = question(name, arguments)
            code = int(function(*arguments))
            answer = {"code": code, "out": [_encode(data) for data in map(_bytes_of, arguments) if data is not None]}
            self.calls.setdefault(asked, {"first": answer})["last"] = answer
            return code

        return call

    def document(self) -> dict[str, Any]:
        """Return the record as JSON has it."""
        return {"format": FORMAT, "calls": self.calls}


class ReplayedNVML:
    """Answers from a record; what was never asked is a function that the driver does not have."""

    def __init__(self, document: dict[str, Any]) -> None:
        if document.get("format") != FORMAT:
            message = f"a record of format {document.get('format')!r} cannot be replayed (this one: {FORMAT})"
            raise ValueError(message)
        self._calls: dict[str, dict[str, Any]] = document["calls"]
        self._names = {key.partition("(")[0] for key, value in self._calls.items() if not value.get("missing")}

    @classmethod
    def read(cls, path: Path) -> ReplayedNVML:
        """Read a record's file."""
        return cls(json.loads(path.read_text()))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlErrorString":
            return _words
        if name in _SKIPPED:
            return _waits if "Wait" in name else _succeeds
        if name not in self._names:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            found = self._calls.get(question(name, arguments))
            if found is None:
                return 3  # NVML_ERROR_NOT_SUPPORTED: never asked of the real board
            answer = found["last"]
            places = [argument for argument in arguments if _bytes_of(argument) is not None]
            for place, data in zip(places, answer["out"], strict=True):
                _fill(place, base64.b64decode(data))
            return int(answer["code"])

        return call


def question(name: str, arguments: tuple[Any, ...]) -> str:
    """Return a call as text: its name, its plain arguments, and the bytes behind its pointers before the call."""
    return f"{name}({', '.join(map(_asked, arguments))})"


def _asked(argument: Any) -> str:
    data = _bytes_of(argument)
    if data is None:
        if _is_pointer(argument):
            return f"handle {ctypes.cast(argument, ctypes.c_void_p).value}"
        return repr(getattr(argument, "value", argument))
    return f"&{_encode(data)}" if any(data) else f"&0*{len(data)}"


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _target(argument: Any) -> Any:
    """Return the ctypes object behind `byref(x)`, `pointer(x)` or a buffer; None: a plain value."""
    if hasattr(argument, "_obj"):
        return argument._obj
    if isinstance(argument, ctypes.Array | ctypes.Structure):
        return argument
    if _is_pointer(argument) and argument and not _is_handle(argument):
        return argument.contents
    return None


def _is_pointer(argument: Any) -> bool:
    return isinstance(argument, ctypes._Pointer)


def _is_handle(argument: Any) -> bool:
    """Return whether a pointer is a handle: it points to a struct that the binding declares without fields."""
    return ctypes.sizeof(argument._type_) == 0


def _bytes_of(argument: Any) -> bytes | None:
    found = _target(argument)
    return None if found is None else bytes(found)


def _fill(argument: Any, data: bytes) -> None:
    found = _target(argument)
    ctypes.memmove(ctypes.addressof(found), data, min(len(data), ctypes.sizeof(found)))


def _plain(function: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    if hasattr(function, "restype"):
        function.restype = ctypes.c_char_p if "ErrorString" in getattr(function, "__name__", "") else ctypes.c_int
    return call


def _words(code: Any) -> bytes:
    return f"recorded NVML error {getattr(code, 'value', code)}".encode()


def _waits(*_arguments: Any) -> int:
    return _TIMEOUT


def _succeeds(*_arguments: Any) -> int:
    return 0
