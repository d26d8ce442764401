"""Simulates libnvidia-ml: what `nvidia-ml-py` takes for the loaded C library.

`nvidia-ml-py` asks it for functions by C name. They are the functions of this package's modules, bound to one machine;
a name that is not there raises AttributeError, which `nvidia-ml-py` reports as FUNCTION_NOT_FOUND, as an older driver
would. Each call holds the machine's lock; waits and slow calls let go of it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import (
    abi,
    compute,
    counter,
    device,
    event,
    firmware,
    lending,
    mig,
    profiling,
    system,
    topology,
)

_MODULES: Final = (system, device, counter, profiling, topology, mig, compute, event, firmware, lending)


def _collect(module: types.ModuleType) -> dict[str, Callable[..., None]]:
    own = vars(module).items()
    return {name: value for name, value in own if name.startswith("nvml") and value.__module__ == module.__name__}


FUNCTIONS: Final[dict[str, Callable[..., None]]] = {
    name: function for module in _MODULES for name, function in _collect(module).items()
}


class SimulatedNVML:
    """One process's view of a simulated driver."""

    def __init__(self, host: machine.Machine) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlErrorString":
            return _error_string()
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return _bind(self._host, FUNCTIONS[name])


def _bind(host: machine.Machine, function: Callable[..., None]) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        with host.lock:
            host.take_up()
            try:
                function(host, *arguments)
            except abi.RefusedError as refusal:
                return refusal.code
        return abi.SUCCESS

    return call


def _error_string() -> Callable[[Any], bytes]:
    def call(code: Any) -> bytes:
        return f"simulated NVML error {abi.number(code)}".encode()

    return call  # a plain function: nvidia-ml-py sets its `restype`
