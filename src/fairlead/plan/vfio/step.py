"""Declares the steps by which a function is bound, released and reset: each is one write to sysfs, or one look.

A step is a value that can be shown, carried out and tested; nothing here knows how. Paths are relative to the root.
"""

from __future__ import annotations

import enum

from fairlead.frozen import frozen
from fairlead.model.vfio import Function

DEVICES = "sys/bus/pci/devices"
PROBE = "sys/bus/pci/drivers_probe"
BUS = "bus"
"""The kernel's word for a bus reset."""


class Act(enum.Enum):
    """What a step does."""

    OVERRIDE = "override"
    """Names the one driver that may have the function; an empty line: any."""
    UNBIND = "unbind"
    PROBE = "probe"
    """Has the kernel look for a driver."""
    VERIFY = "verify"
    """Reads the `driver` link, which alone says whether a binding worked."""
    CHOOSE_RESET = "choose-reset"
    """Says how the next reset is done."""
    RESET = "reset"
    ANSWERS = "answers"
    """Looks whether the function answers on the bus, within a limit."""
    SCRUBBED = "scrubbed"
    """Waits for the flag by which a GPU says that it has erased its memory, within a limit."""


LOOKS = frozenset({Act.VERIFY, Act.ANSWERS, Act.SCRUBBED})
"""Steps that write nothing."""


@frozen
class Step:
    """One step for one function."""

    act: Act
    address: str
    path: str = ""
    """File that is written; empty where nothing is."""
    text: str = ""
    """What is written, without the newline; of VERIFY the driver that must be bound, empty: any but VFIO's."""
    limit_s: float = 0
    """How long a look may take."""

    @property
    def shown(self) -> str:
        """The step as a person would do it in a shell."""
        if self.act is Act.VERIFY:
            wanted = self.text or "not VFIO's"
            return f"readlink /{DEVICES}/{self.address}/driver   # {wanted}"
        if self.act is Act.ANSWERS:
            return f"head -c 4 /{DEVICES}/{self.address}/config | xxd  # not ffff ffff, {self.limit_s:g} s"
        if self.act is Act.SCRUBBED:
            return f"# {self.address} says that its memory is erased, within {self.limit_s:g} s"
        return f"echo {self.text} > /{self.path}".replace("echo  >", "echo >")


def override(one: Function, driver: str) -> Step:
    """Return the step that names a function's only driver. Args: driver: empty: any may have it."""
    return Step(act=Act.OVERRIDE, address=one.address, path=_file(one.address, "driver_override"), text=driver)


def unbind(address: str) -> Step:
    """Return the step that takes a function from its driver."""
    return Step(act=Act.UNBIND, address=address, path=_file(address, "driver/unbind"), text=address)


def probe(address: str) -> Step:
    """Return the step that has the kernel look for a function's driver."""
    return Step(act=Act.PROBE, address=address, path=PROBE, text=address)


def verify(address: str, driver: str) -> Step:
    """Return the step that looks which driver has a function. Args: driver: empty: any but VFIO's, or none."""
    return Step(act=Act.VERIFY, address=address, text=driver)


def reset(address: str, methods: str, via: str) -> tuple[Step, Step, Step]:
    """Return the steps that reset a function in one way, after which the kernel's own choice is as before.

    A bus reset is chosen alone, since the kernel would take a weaker way where it fails. Any other way is put first and
    the rest is kept behind it, so that a process that dies in between loses the order and no method.
    """
    others = [name for name in methods.split() if via not in {name, BUS}]
    return (
        _choose(address, " ".join([via, *others])),
        plain_reset(address),
        _choose(address, methods),
    )


def choose_default(address: str) -> Step:
    """Return the step after which the kernel chooses among all ways of resetting a function, as after a boot."""
    return _choose(address, "default")


def _choose(address: str, methods: str) -> Step:
    return Step(act=Act.CHOOSE_RESET, address=address, path=_file(address, "reset_method"), text=methods)


def plain_reset(address: str) -> Step:
    """Return the step that resets a function as the kernel sees fit."""
    return Step(act=Act.RESET, address=address, path=_file(address, "reset"), text="1")


def reset_below(bridge: str) -> Step:
    """Return the step that resets all below a bridge at once."""
    return Step(act=Act.RESET, address=bridge, path=_file(bridge, "reset_subordinate"), text="1")


def _file(address: str, name: str) -> str:
    return f"{DEVICES}/{address}/{name}"
