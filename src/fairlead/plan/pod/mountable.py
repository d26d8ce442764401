"""Judges the folders of the machine that its users and accounts may mount: those of the setting `api.mounts`. Pure.

They are mounted read-only, and only into a user namespace: root inside reads there what every account of the machine
may read, and writes nothing. A link inside such a folder may lead out of it, which the kubelet judges before the
container starts (`node/kubelet/hostpath.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import tenantrule
from fairlead.wire.kubernetes import core

SETTING: Final = "api.mounts"


def parse(text: str) -> tuple[str, ...]:
    """Return the folders of the setting, canonically written.

    Raises: Invalid (`MountsInvalid`): one is not absolute, or leads to devices or to what runs as root.
    """
    found = list[str]()
    for part in filter(None, (one.strip() for one in text.split(","))):
        if not part.startswith("/"):
            message = f'{SETTING} lists "{errors.readable(part)}", which is not a path from / on'
            raise errors.Invalid(message, reason="MountsInvalid", hint='write folders with commas: "/datasets,/models"')
        folder = tenantrule.canonical(part)
        if tenantrule.leads_astray(folder, ()):
            message = f'{SETTING} lists "{errors.readable(part)}", which holds devices, or files of root\'s programs'
            raise errors.Invalid(message, reason="MountsInvalid", hint="list the folders of data alone")
        found.append(folder)
    return tuple(dict.fromkeys(found))


def is_inside(path: str, folders: Sequence[str]) -> bool:
    """Return whether a canonical path is one of some folders, or lies in one."""
    return ".." not in path.split("/") and any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _is_listed(path: str, folders: Sequence[str]) -> bool:
    return path.startswith("/") and is_inside(tenantrule.canonical(path), folders)


def problems(pod: core.Pod, folders: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the folders of the machine that a user's pod mounts. Args: folders: of the setting."""
    paths = {one.name: one.host_path.path for one in pod.spec.volumes if one.host_path is not None}
    for path in paths.values():
        if not _is_listed(path, folders):
            listed = f"people may mount {', '.join(folders)}" if folders else "no folder is listed for people"
            yield (
                f'volume "{errors.readable(path)}" is a folder of the host ({listed}; setting {SETTING}): '
                "mount a volume of your own by a name, -v NAME:/PATH"
            )
    for item in (*pod.spec.init_containers, *pod.spec.containers):
        for mount in item.volume_mounts:
            path = paths.get(mount.name, "")
            if path and not mount.read_only and _is_listed(path, folders):
                yield f'volume "{errors.readable(path)}" is mounted read-only: write -v {path}:{mount.mount_path}:ro'


def is_marked(pod: core.Pod) -> bool:
    """Return whether `marked` has marked a pod."""
    return pod.spec.machine is not None and pod.spec.machine.has_listed_mounts


def marked(pod: core.Pod) -> core.Pod:
    """Return a pod whose folders of the machine the kubelet holds to the setting; one that mounts none is as it was."""
    options = pod.spec.machine or core.MachineOptions()
    mounts = any(one.host_path is not None for one in pod.spec.volumes)
    if options.has_listed_mounts == mounts:
        return pod
    machine = msgspec.structs.replace(options, has_listed_mounts=mounts)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, machine=machine))
