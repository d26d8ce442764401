"""Loads NVML: a private copy of `nvidia-ml-py` over one library, with NVML's errors translated.

`nvidia-ml-py` keeps the loaded library and its function pointers in module globals. Each `Binding` therefore executes
the module anew under its own name: two libraries (a real and a simulated one, or two simulations) live side by side in
one process, no cached function pointer ever belongs to another library, and the module costs nothing until a driver is
there to speak to.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from fairlead import errors

T = TypeVar("T")

_numbers: Final = itertools.count(1)
DEFAULT_LIBRARY: Final = Path("libnvidia-ml.so.1")

# Reading → stable token of the error table, by nvmlReturn_t.
_START_REASONS: Final = {
    4: ("DriverNoPermission", "run as root"),
    9: ("DriverNotLoaded", "load the kernel module: modprobe nvidia"),
    12: ("DriverLibraryMissing", "install the driver's libnvidia-ml.so.1"),
    18: ("DriverVersionMismatch", "reboot or reload the modules: kernel module and library differ in version"),
}
_GPU_REASONS: Final = {15: "Lost"}
ABSENT: Final = frozenset({2, 3, 4, 6, 13, 21, 25, 26, 999})
"""Codes with which one reading may be missing while the GPU is well: not supported, no permission, no data, …"""


class Binding:
    """`nvidia-ml-py` over one library. Calls are blocking: make them by `callthread`.

    Raises:  Unavailable: no library, or it refuses to start (reason `DriverNotLoaded`, `DriverVersionMismatch`, …).
    """

    def __init__(self, library: object | Path | None) -> None:
        loaded = _load(library)  # first: without a library the module is never executed
        self.nvml: Any = _private_copy()
        self.nvml.nvmlLib = loaded
        try:
            self.nvml.nvmlInit()
        except self.error as error:
            raise start_error(error) from error

    @property
    def error(self) -> type[Exception]:
        """NVMLError of this copy."""
        kind: type[Exception] = self.nvml.NVMLError
        return kind

    def reading(self, name: str, *arguments: object) -> Any:
        """Call a function whose answer may be missing; None where GPU or driver does not offer it."""
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.error as error:
            if code_of(error) in ABSENT:
                return None
            raise

    def shut_down(self) -> None:
        """Release the library; an error while doing so changes nothing."""
        try:
            self.nvml.nvmlShutdown()
        except self.error:
            return


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes one source under many names, compiled once a process."""

    def get_code(self, _name: str) -> types.CodeType | None:
        return _compile(str(self.path))


@functools.cache
def _compile(path: str) -> types.CodeType | None:
    return importlib.machinery.SourceFileLoader("pynvml", path).get_code("pynvml")


def _private_copy() -> Any:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise errors.Unavailable(
            "nvidia-ml-py is not installed", reason="DriverBindingMissing", hint="install Fairlead"
        )
    name = f"fairlead.silicon._pynvml_{next(_numbers)}"
    loader = _Loader(name, found.origin)
    module = types.ModuleType(name)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    sys.modules[name] = module  # its error classes look their own module up by name while it executes
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _import(name: str, *more: Any, **named: Any) -> object:
    """Import as ever but for `ctypes.util`, with which a copy would search for a library: each is given one instead.
    That module starts programs, and with all that it imports costs a short command 5 ms.
    """
    return _NO_SEARCH if name == "ctypes.util" else builtins.__import__(name, *more, **named)


_NO_SEARCH: Final = types.SimpleNamespace(find_library=None)


def _load(library: object | Path | None) -> object:
    if library is not None and not isinstance(library, Path):
        return library
    path = library or DEFAULT_LIBRARY
    try:
        return ctypes.CDLL(str(path))
    except (OSError, UnicodeError) as error:  # the linker's own words name the path, whatever it is made of
        message = f"cannot load {errors.readable(str(path))}: {error}"
        raise errors.Unavailable(message, reason="DriverLibraryMissing", hint=_START_REASONS[12][1]) from error


def code_of(error: Exception) -> int:
    """Return the nvmlReturn_t an NVMLError carries."""
    return int(getattr(error, "value", 999))


def start_error(error: Exception) -> errors.Unavailable:
    """Translate an NVMLError of the library's start or of a machine-wide call."""
    reason, hint = _START_REASONS.get(code_of(error), ("DriverUnavailable", "see dmesg for NVRM messages"))
    return errors.Unavailable(f"nvml does not answer: {error}", reason=reason, hint=hint, code=code_of(error))


def gpu_error(error: Exception) -> errors.DeviceFault:
    """Translate an error met while reading one GPU."""
    if isinstance(error, errors.DeviceFault):
        return error
    reason = _GPU_REASONS.get(code_of(error), "Unreadable")
    return errors.DeviceFault(f"nvml: {error}", reason=reason, hint="reset the GPU or reboot the machine")


def gpu_call(
    open_binding: Callable[[], Binding],
    gpu: str,
    call: Callable[[Binding, Any], T],
    translate: Callable[[Exception], errors.FairleadError],
) -> Callable[[], T]:
    """Return a blocking call that opens NVML, finds a GPU by its UUID and translates NVML's errors.

    Args: call: takes the binding and the GPU's handle.
    """

    def run() -> T:
        nvml = open_binding()
        try:
            return call(nvml, nvml.nvml.nvmlDeviceGetHandleByUUID(gpu))
        except nvml.error as error:
            raise translate(error) from error

    return run
