"""Judges the specs of devices that a container asks for by their CDI names, before the engine is given them.

`plan.pod.device` judges the name, this what stands behind it: nodes, mounts, variables and hooks of the very specs that
are handed on (`edits.Reading`). A hook is a program that the engine runs as root for every such container, and what it
does is not known: it must be root's alone to change, and none of those that give containers GPUs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead import errors
from fairlead.node.isolation import edits
from fairlead.plan.pod import device

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check(names: tuple[str, ...], specs: edits.Reading) -> None:
    """Refuse devices whose specs bring a GPU under whatever path, or have root run what others may change.

    Raises: Denied (`DeviceIsGPU`, `DeviceHookUnsafe`); RequestError: a name that no spec defines.
    """
    found = specs.resolve(names)
    paths = [path for host, inside, _ in (*found.nodes, *found.binds) for path in (host, inside)]
    majors = [major for major, _ in found.numbers]
    for host, _, _ in (*found.nodes, *found.binds):
        with contextlib.suppress(OSError):
            majors.append(os.major(Path(host).stat().st_rdev))  # a link to a node is one
    drivers = Path("/proc/devices").read_text()
    gpu = device.hidden(paths, majors, drivers) or device.asking(found.env, found.hooks)
    if gpu:
        message = f"the CDI devices {', '.join(names)} bring {gpu}, and GPUs are given away by the allocation alone"
        raise errors.Denied(message, reason="DeviceIsGPU", hint=device.HINT)
    for hook in found.hooks:
        if why := next(_unsafe(Path(hook)), ""):
            message = f"the CDI devices {', '.join(names)} have root run {errors.readable(hook[:200])}: {why}"
            hint = "a hook and the folders above it must be root's, and nobody else's to write"
            raise errors.Denied(message, reason="DeviceHookUnsafe", hint=hint)


def _unsafe(hook: Path) -> Iterator[str]:
    """Yield why a program may be another one tomorrow: links are followed, each folder on the way is looked at."""
    try:
        real = hook.resolve(strict=True)
        for one in dict.fromkeys((hook, *hook.parents, real, *real.parents)):
            status = one.lstat()
            is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            if stat.S_ISLNK(status.st_mode):
                continue
            if status.st_uid or (status.st_mode & _OTHERS_WRITE and not is_sticky):
                yield f"{one} is not root's alone to change"
    except (OSError, RuntimeError) as error:
        yield f"it cannot be looked at ({error})"
