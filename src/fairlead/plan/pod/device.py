"""Judges devices that a container asks for by their CDI names (`run --device vendor/class=name`). Pure.

Such a device is nobody's to give away: two containers may have it at a time. GPUs are never asked for so, nor what the
agent hands out beside them: the ledger would not know. Root's own containers have what the machine's specs define;
users, accounts and tenancies what the setting `api.devices` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from fairlead import errors
from fairlead.model import cdikind
from fairlead.wire.kubernetes import core

SETTING: Final = "api.devices"
MOST: Final = 32
_NAME: Final = re.compile(
    r"(?P<vendor>[A-Za-z](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)/(?P<kind>[A-Za-z](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)"
    r"=(?P<device>[A-Za-z0-9](?:[A-Za-z0-9_.:-]{0,126}[A-Za-z0-9])?)"
)
"""Source: CDI SPEC.md, "kind" and "name"; lengths are ours."""
_LISTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*=(?:\*|[A-Za-z0-9][A-Za-z0-9_.:-]*)")
_OWNED: Final = frozenset(
    {*cdikind.KINDS.values(), *cdikind.ALLOCATED.values(), *cdikind.COMPANIONS.values(), cdikind.LENT}
)
_CLASSES: Final = frozenset({"gpu", "mig", "vgpu", "pgpu", "gpu-mem", "claim"})
"""Classes by which vendors and their plugins call GPUs, and DRA drivers what a claim was given, whatever the vendor."""
HINT: Final = "GPUs are asked for by number: -g 1; which ones: --where"
_NODE: Final = re.compile(r"/dev/(?:nvidia|dri(?:/|$)|kfd$|vfio(?:/|$)|accel|nvhost|nvmap|dxg$)|/dev/?$")
_DRIVERS: Final = re.compile(r"nvidia|drm$|kfd$|vfio|accel|nvhost|nvmap")
"""Names of GPU drivers in /proc/devices."""


_ASKING: Final = re.compile(r"(?:NVIDIA|AMD)_VISIBLE_DEVICES$")
_NONE: Final = frozenset({"", "void", "none"})
"""Values of such a variable that ask for nothing."""
_GIVING: Final = re.compile(r"nvidia-|fairlead|rocm-|amd-ctk$|amd-container")
"""Programs of hooks that give containers GPUs."""
_MAJORS: Final = {195: "NVIDIA's driver", 226: "drm"}
"""Numbers that are a GPU driver's on every machine.  Source: Linux Documentation/admin-guide/devices.txt."""


def parse(text: str) -> tuple[str, ...]:
    """Return what the setting lists: names, or `vendor/class=*`. Raises: Invalid (`DevicesInvalid`)."""
    found = tuple(dict.fromkeys(filter(None, (one.strip() for one in text.split(",")))))
    for one in found:
        if not _LISTED.fullmatch(one):
            message = f'{SETTING} lists "{errors.readable(one[:200])}", which is not vendor/class=name'
            raise errors.Invalid(message, reason="DevicesInvalid", hint='for example "lab.example/camera=*"')
        if is_owned(one):
            message = f'{SETTING} lists "{errors.readable(one[:200])}", which stands for GPUs'
            raise errors.Invalid(message, reason="DevicesInvalid", hint=HINT)
    return found


def is_name(text: str) -> bool:
    """Return whether a text is a fully qualified CDI name."""
    return _NAME.fullmatch(text) is not None


def is_owned(name: str) -> bool:
    """Return whether a name is of a kind that stands for GPUs, or for what the agent hands out beside them."""
    kind = cdikind.kind_of(name)
    vendor = kind.partition("/")[0].lower()
    is_ours = vendor == "fairlead.dev" or vendor.endswith(".fairlead.dev")
    is_known = kind in _OWNED or cdikind.class_of(kind).lower() in _CLASSES or cdikind.is_of_switches(kind)
    return is_known or is_ours


def problems(wanted: core.MachineOptions) -> Iterator[str]:
    """Yield what is wrong with the devices that a pod names."""
    if len(wanted.devices) > MOST:
        yield f"spec.machine.devices: Too many: {len(wanted.devices)}: must have at most {MOST} items"
    for index, name in enumerate(wanted.devices[:MOST]):
        path, shown = f"spec.machine.devices[{index}]", errors.readable(name[:200])
        if not is_name(name):
            yield f'{path}: Invalid value: "{shown}": must be a CDI device\'s name, vendor/class=name'
        elif is_owned(name):
            yield f'{path}: Forbidden: "{shown}" is of a kind that is given away as GPUs are ({HINT})'


def refusal(wanted: core.MachineOptions, listed: Sequence[str]) -> errors.Denied | None:
    """Return why a tenant does not get the devices that a pod names; None: it may have them.

    Args: listed: of the setting.
    """
    for name in wanted.devices:
        if name not in listed and f"{cdikind.kind_of(name)}=*" not in listed:
            offered = f"{SETTING} lists {', '.join(listed) or 'none'}"
            shown = errors.readable(name[:200])
            message = f'device "{shown}" is not one that users, accounts and tenancies may ask for ({offered})'
            return errors.Denied(message, reason="DeviceForbidden", hint=f"have root add it to the setting {SETTING}")
    return None


def hidden(paths: Sequence[str], majors: Sequence[int], drivers: str) -> str:
    """Return which node of devices that were asked for by name is a GPU's; empty: none is.

    A spec of another kind may bring a GPU all the same, under whatever path.
    Args: paths: of nodes and mounts, on the host and in the container.   majors: of the nodes.   drivers: the text of
          /proc/devices.
    """
    for path in paths:
        if _NODE.match(path):
            return path
    for number in majors:
        if number in _MAJORS:
            return f"a node of {_MAJORS[number]} ({number}:*)"
    for line in drivers.splitlines():
        text, _, name = line.strip().partition(" ")
        if text.isdecimal() and int(text) in majors and _DRIVERS.match(name):
            return f"a node of {name} ({text}:*)"
    return ""


def asking(variables: Sequence[str], hooks: Sequence[str]) -> str:
    """Return what asks a runtime or a hook for GPUs, of devices that were asked for by name; empty: nothing does.

    Args: variables: `NAME=VALUE`.   hooks: paths of programs. What else a hook does is not known.
    """
    for text in variables:
        name, _, value = text.partition("=")
        if _ASKING.match(name) and value not in _NONE:
            return f"the variable {name}"
    return next((f"the hook {path}" for path in hooks if _GIVING.match(path.rpartition("/")[2])), "")
