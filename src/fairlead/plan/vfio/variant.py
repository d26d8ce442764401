"""Chooses the VFIO driver that suits a function best: a vendor's variant where the kernel's list names one.

A line of modules.alias names the functions that a module is for, a field at a time, `*` for any. Among the lines that
fit, the one with the fewest such fields wins. Names of modules and drivers differ in `-` and `_`, which count the same.
Source: kernel Documentation/driver-api/vfio-pci-device-specific-driver-acceptance.rst, scripts/mod/file2alias.c
(do_pci_entry).
"""

from __future__ import annotations

import re
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.vfio import VFIO_PCI, Function, PassthroughHost, VariantDriver

_FIELDS: Final = (("v", 8), ("d", 8), ("sv", 8), ("sd", 8), ("bc", 2), ("sc", 2), ("i", 2))
_PATTERN: Final = re.compile("".join(rf"{name}(\*|[0-9A-F]{{{digits}}})" for name, digits in _FIELDS))
_MODULE: Final = re.compile(r"[A-Za-z0-9_-]{1,56}")


@frozen
class Choice:
    """The driver for one function."""

    driver: str
    """As it is registered; where it is not, as its module is called."""
    is_registered: bool
    """Whether it can be bound to now."""

    @property
    def module(self) -> str:
        """What `modprobe` loads."""
        return self.driver


def choose_driver(function: Function, host: PassthroughHost) -> Choice:
    """Return the best VFIO driver; `vfio-pci` where the kernel's list names no better one or cannot be read."""
    fitting = [
        (count, place, one.module)
        for place, one in enumerate(host.variants or ())
        if _MODULE.fullmatch(one.module) and (count := _wildcards(function, one)) is not None
    ]
    module = min(fitting)[2] if fitting else VFIO_PCI
    registered = next((name for name in host.drivers if same(name, module)), None)
    name = VFIO_PCI if same(module, VFIO_PCI) else module
    return Choice(driver=registered or name, is_registered=registered is not None)


def same(one: str, other: str) -> bool:
    """Return whether two names of drivers or modules mean the same."""
    return one.replace("-", "_") == other.replace("-", "_")


def _wildcards(function: Function, variant: VariantDriver) -> int | None:
    """Return how many fields of a line fit anything; None: it does not fit the function, or is no such line."""
    match = _PATTERN.fullmatch(variant.pattern)
    if match is None:
        return None
    numbers = (
        function.vendor,
        function.device,
        function.subsystem_vendor,
        function.subsystem_device,
        function.pci_class >> 16,
        function.pci_class >> 8 & 0xFF,
        function.pci_class & 0xFF,
    )
    wanted = match.groups()
    fits = all(want == "*" or int(want, 16) == number for want, number in zip(wanted, numbers, strict=True))
    return wanted.count("*") if fits else None
