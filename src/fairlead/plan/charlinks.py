"""Decides which links `/dev/char` needs so that systemd lets containers have their GPUs.

With the systemd cgroup driver runc names devices as `DeviceAllow=/dev/char/MAJOR:MINOR`. Some versions look that path
up and leave out what is not there (1.1.3 to 1.1.6), as does systemd before 240. udev makes these links for devices the
kernel announces; NVIDIA's nodes are made by a program, without an event, so their links are missing: containers start
and then lose their GPUs at the next `systemctl daemon-reload`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

PATTERNS: Final = ("nvidia*", "nvidia-caps/nvidia-cap*", "nvidia-caps-imex-channels/channel*", "gdrdrv")
"""Nodes below /dev that no udev event announces."""
_CONTROL: Final = (("nvidiactl", 255), ("nvidia-modeset", 254))
_UVM: Final = (("nvidia-uvm", 0), ("nvidia-uvm-tools", 1))


@dataclass(frozen=True, slots=True)
class Node:
    """A character device: its name below /dev, and its numbers."""

    name: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of /dev/char."""

    target: str | None
    """None: it is not a symbolic link."""
    number: str | None
    """`MAJOR:MINOR` of what it leads to; None: it leads nowhere."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in /dev/char."""

    make: Mapping[str, str] = field(default_factory=dict)
    """Target by link name, also of links that exist and lead elsewhere."""
    remove: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    """Names at which something stands that is not a link."""


def decide(nodes: Iterable[Node], links: Mapping[str, Link]) -> Decision:
    """Decide the links of these nodes; a link that leads to a device of its number is right, no matter who made it.

    Args:    nodes: those that are there, or will be.   links: what is in /dev/char, by name.
    Returns: links of NVIDIA's nodes that lead nowhere, or to another number, are removed when no node wants them.
    """
    wanted: dict[str, str] = {}
    for node in nodes:
        wanted.setdefault(f"{node.major}:{node.minor}", f"../{node.name}")
    blocked = tuple(sorted(name for name in wanted if name in links and links[name].target is None))
    make = {name: target for name, target in wanted.items() if not _is_right(name, target, links.get(name))}
    stale = (
        name
        for name, link in links.items()
        if name not in wanted and link.number != name and link.target is not None and _is_nvidias(link.target)
    )
    return Decision({k: v for k, v in make.items() if k not in blocked}, tuple(sorted(stale)), blocked)


def _is_right(name: str, target: str, link: Link | None) -> bool:
    return link is not None and (link.number == name or link.target == target)


def _is_nvidias(target: str) -> bool:
    path = posixpath.normpath(posixpath.join("/dev/char", target))
    return path.startswith(("/dev/nvidia", "/dev/gdrdrv"))


def expected(gpus: int, majors: Mapping[str, int]) -> tuple[Node, ...]:
    """Return the nodes that the driver's tools will make: for links before the first program asks for a GPU.

    Args: gpus: how many there are.   majors: of /proc/devices, by name.
    """
    found = [Node(f"nvidia{minor}", 195, minor) for minor in range(gpus)]
    found += [Node(name, 195, minor) for name, minor in _CONTROL]
    if "nvidia-uvm" in majors:
        found += [Node(name, majors["nvidia-uvm"], minor) for name, minor in _UVM]
    return tuple(found) if gpus else ()


def udev_rule(program: str) -> str:
    """Return the rule that makes the links whenever NVIDIA's kernel module comes.

    Args: program: absolute path of `fairlead`.
    """
    return (
        "# Links in /dev/char for NVIDIA's devices, which systemd needs to let containers have them.\n"
        "# As /etc/udev/rules.d/71-fairlead-char-links.rules, then: udevadm control --reload\n"
        f'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="{program} runtime char-links --ahead"\n'
        f'ACTION=="add", DEVPATH=="/module/nvidia_uvm", SUBSYSTEM=="module", '
        f'RUN+="{program} runtime char-links --ahead"\n'
    )
