"""Finds the Service VM among this machine's virtual machines: the one that has the NVSwitches, by its command line.

Kata gives each of its machines a context id by chance, which only its emulator's command line has. A container's
process can call itself what it likes, so it must have the switches' VFIO node open as well, which only who was given
them can. The handshake with the agent proves the rest.
Source: kata-containers, govmm's `-device vfio-pci,host=` and `-device vhost-vsock-pci,guest-cid=`; proc(5).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.model.vfio import SWITCHES
from fairlead.silicon.vfio import attribute, discovery

_AGENT: Final = re.compile(r"nvswitch:([0-9]{1,10})", re.ASCII)
_CID: Final = re.compile(rb"guest-cid\"?[=:]\"?([0-9]{1,10})")
_LONGEST: Final = 1 << 18
UNKNOWN: Final = "FabricVMUnknown"


def port_of(agent: str) -> int | None:
    """Return the port of `nvswitch:PORT`; None: it is another address. Raises: Invalid: no machine has that port."""
    found = _AGENT.fullmatch(agent)
    if found is None:
        return None
    port = int(found[1])
    if not 0 < port < 2**32:
        raise errors.Invalid(
            f'"{agent}" is no address of an agent', reason="FabricAddressInvalid", hint="nvswitch:6667"
        )
    return port


def find_cid(root: Path) -> int:
    """Return the context id of the machine that has them. Raises: Unavailable (`FabricVMUnknown`): there is not one."""
    own = [one for one in discovery.scan(root).functions if one.kind in SWITCHES]
    switches = tuple(one.address for one in own)
    numbers = frozenset((node.major, node.minor) for one in own for node in one.nodes)
    if not switches:
        hint = "`fairlead vfio list` shows what is there; name the agent as CID:PORT"
        raise errors.Unavailable("this node has no NVSwitches", reason=UNKNOWN, hint=hint)
    found = {
        cid
        for pid, line in _lines(root)
        if (cid := _cid_of(line, switches)) is not None and _has_open(Path(f"{root}/proc/{pid}/fd"), numbers)
    }
    if len(found) != 1:
        what = "no machine has" if not found else f"{len(found)} machines seem to have"
        hint = "start the Service VM; it needs a vsock device, and this process must see the host's processes"
        raise errors.Unavailable(f"{what} the NVSwitches ({', '.join(switches)})", reason=UNKNOWN, hint=hint)
    return found.pop()


def _cid_of(line: bytes, switches: tuple[str, ...]) -> int | None:
    """Return the context id on a command line that has every switch; None: it has not."""
    if not all(re.search(rb"\b(?:" + _spelt(one) + rb")\b", line) for one in switches):
        return None
    found = _CID.search(line)
    return int(found[1]) if found is not None else None


def _spelt(address: str) -> bytes:
    """Return a pattern of an address with its domain, or without one that is 0000."""
    own = re.escape(address.encode())
    return own + rb"|" + re.escape(address.removeprefix("0000:").encode()) if address.startswith("0000:") else own


def _lines(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the pid and command line of every process."""
    for pid in filter(str.isdecimal, attribute.names(f"{root}/proc")):
        try:
            with Path(f"{root}/proc/{pid}/cmdline").open("rb") as opened:
                yield pid, opened.read(_LONGEST)
        except OSError:
            continue  # it ended


def _has_open(folder: Path, numbers: frozenset[tuple[int, int]]) -> bool:
    """Return whether a process has one of some character devices open, by their numbers and not by a path's text."""
    for name in attribute.names(str(folder)):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) in numbers:
            return True
    return False
