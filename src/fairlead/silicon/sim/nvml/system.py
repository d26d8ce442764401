"""Simulates NVML's calls about the library and the driver."""

from __future__ import annotations

from typing import Any

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import abi


def nvmlInitWithFlags(host: machine.Machine, _flags: Any) -> None:
    if host.init_code:
        raise abi.RefusedError(host.init_code)


def nvmlInit_v2(host: machine.Machine) -> None:
    nvmlInitWithFlags(host, 0)


def nvmlShutdown(_host: machine.Machine) -> None:
    """The state is the machine's, not the library's: nothing to release."""


def nvmlSystemGetDriverVersion(host: machine.Machine, buffer: Any, size: Any) -> None:
    abi.put_text(buffer, size, host.profile.driver)


def nvmlSystemGetNVMLVersion(host: machine.Machine, buffer: Any, size: Any) -> None:
    abi.put_text(buffer, size, f"{host.profile.cuda[0]}.{host.profile.driver}")


def nvmlSystemGetCudaDriverVersion(host: machine.Machine, version: Any) -> None:
    major, minor = host.profile.cuda
    abi.put(version, major * 1000 + minor * 10)


def nvmlSystemGetCudaDriverVersion_v2(host: machine.Machine, version: Any) -> None:
    nvmlSystemGetCudaDriverVersion(host, version)
