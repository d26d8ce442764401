"""Judges what the hostPath volumes of a tenant's container really are, before its first instruction runs.

Admission judges the text of a path. A link inside an allowed folder leads past it, and a tenant who may write there can
exchange it between any look and the engine's mount. So the container is judged as it stands, its mounts made and its
process held: each volume is opened once, links followed, its canonical path is judged by the table of `tenantrule`,
and the very folder that was judged must be what the container has mounted, as often as it mounts the volume. A folder
is known by its file system and the path inside it, as the kernel's mount tables name both.

Folders of the setting `api.mounts` are mounted into user namespaces, whose root reads what every account may. The
kernel asks only for the rights of what was mounted, not for those of the folders on the way to it, so these are judged
here: no container mounts what lies behind a folder that is closed to others.
Source: proc_pid_mountinfo(5); proc_pid_fdinfo(5), mnt_id.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.plan.pod import mountable, tenantrule
from fairlead.wire.kubernetes import core, names

FORBIDDEN: Final = "HostPathForbidden"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")

Place = tuple[str, str]
"""A file system's number as mount tables write it, and a path inside it."""


@dataclass(frozen=True, slots=True)
class _Mount:
    id: str
    place: Place
    point: str
    is_read_only: bool


def is_tenants(pod: core.Pod, namespace: core.Namespace | None) -> bool:
    """Return whether the rules for tenants bind a pod: by its namespace, or by the request that made it."""
    labels = namespace.metadata.labels if namespace is not None else {}
    return tenantrule.TENANCY in labels or names.TENANT in pod.metadata.annotations or mountable.is_marked(pod)


def paths(pod: core.Pod, item: core.Container) -> tuple[str, ...]:
    """Return the host paths that a container mounts, each as often as it mounts it."""
    volumes = {one.name: one.host_path.path for one in pod.spec.volumes if one.host_path is not None}
    return tuple(volumes[mount.name] for mount in item.volume_mounts if mount.name in volumes)


def check(pid: int, mounted: Sequence[str], own: Iterable[Path], *, root: str = "") -> None:
    """Refuse a held container that has mounted what a tenant may not, or what its path does not lead to.

    Args:    mounted: host paths that it was to mount.   own: folders of ours on this node.
             root: where the container's root is for the process; mounts elsewhere are not the container's.
    Raises:  Denied (`HostPathForbidden`).
    """
    guarded = _guarded(own)
    wanted: Counter[Place] = Counter()
    for path in mounted:
        canonical, place = _locate(path)
        problem = tenantrule.leads_astray(canonical, guarded)
        if problem:
            raise errors.Denied(f"hostPath {path} is {canonical} on this node: {problem}", reason=FORBIDDEN)
        wanted[place] += 1
    found = Counter(mount.place for mount in _mounts_of(pid, root))
    if wanted - found:
        said = ", ".join(sorted(set(mounted)))
        message = f"the container has mounted something else than what hostPath {said} leads to now"
        raise errors.Denied(message, reason=FORBIDDEN, hint="a link was exchanged meanwhile? it is made again")


def check_listed(pid: int, mounted: Sequence[str], listed: Sequence[str], *, root: str = "") -> None:
    """Refuse a held container whose folders of the machine are not those that its users may mount, or not read-only.

    Args:    mounted: host paths that it was to mount, which `check` has let pass.   listed: those of `api.mounts`.
             root: as of `check`.
    Raises:  Denied (`HostPathForbidden`).
    """
    folders = [os.path.realpath(one) for one in listed if not exchangeable(one)]
    inside = {mount.place: mount for mount in _mounts_of(pid, root)}
    for path in mounted:
        canonical, place = _locate(path)
        if not mountable.is_inside(canonical, folders):
            message = f"hostPath {path} is {canonical} on this node, which lies in no folder of {mountable.SETTING}"
            raise errors.Denied(message, reason=FORBIDDEN, hint="`fairlead doctor`, as root, says which are usable")
        if closed := _closed(canonical, folders):
            message = f"hostPath {path} lies behind {closed}, which is closed to others"
            raise errors.Denied(message, reason=FORBIDDEN, hint="its owner opens it: `chmod o+x`")
        below = [one.place for one in _mounts("/proc/self/mountinfo") if one.point.startswith(f"{canonical}/")]
        for one in (place, *below):
            if one in inside and not inside[one].is_read_only:
                message = f"hostPath {path} would be writable in the container at {inside[one].point}"
                hint = "a file system below it is mounted writable on this node: mount a folder without it"
                raise errors.Denied(message, reason=FORBIDDEN, hint=hint)


def exchangeable(folder: str) -> str:
    """Return why another than root can put something else in a folder's place; empty: none can."""
    canonical = Path(os.path.realpath(folder))
    try:
        child = canonical.lstat()
        for parent in canonical.parents:
            found = parent.lstat()
            is_sticky = bool(found.st_mode & stat.S_ISVTX) and child.st_uid == 0
            if found.st_uid != 0 or (found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky):
                return f"{parent} is not root's alone to write, so that {folder} can be exchanged"
            child = found
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    return ""


def _closed(canonical: str, folders: Iterable[str]) -> Path | None:
    """Return the folder on the way from a listed one to a path that others may not pass; None: they may."""
    for parent in Path(canonical).parents:
        if mountable.is_inside(str(parent), [*folders]) and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def _guarded(own: Iterable[Path]) -> tuple[str, ...]:
    """Return where guarded folders are on this node, whose links may lead elsewhere; never the root itself."""
    every = [Path(one) for one in tenantrule.PATHS if one.endswith("/")]
    found = (os.path.realpath(one) for one in (*every, *own) if one.exists())
    return tuple(dict.fromkeys(one for one in found if one != "/"))


def _locate(path: str) -> tuple[str, Place]:
    """Return what a path leads to: canonically, and as mount tables name it. Raises: Denied: nothing is there."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        message = f"hostPath {path} leads nowhere on this node: {error.strerror}"
        raise errors.Denied(message, reason=FORBIDDEN) from error
    try:
        canonical = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    number = next((line.split()[1] for line in facts.splitlines() if line.startswith("mnt_id:")), "")
    for mount in _mounts("/proc/self/mountinfo"):
        if mount.id == number:
            device, root = mount.place
            below = os.path.relpath(canonical, mount.point)
            return canonical, (device, os.path.normpath(f"{root.rstrip('/')}/{below}"))
    raise errors.Denied(f"hostPath {path} is in no file system that this node's kubelet sees", reason=FORBIDDEN)


def _mounts_of(pid: int, root: str) -> list[_Mount]:
    """Return the mounts of a container: those of its process, below its root."""
    return [one for one in _mounts(f"/proc/{pid}/mountinfo") if one.point.startswith(f"{root}/")]


def _mounts(table: str) -> list[_Mount]:
    """Read a mount table; none where the process has ended."""
    with contextlib.suppress(OSError):
        return [_mount(line.split(" ")) for line in Path(table).read_text(errors="surrogateescape").splitlines()]
    return []


def _mount(fields: list[str]) -> _Mount:
    number, _, device, root, point, options, *_ = fields
    return _Mount(number, (device, _plain(root)), _plain(point), "ro" in options.split(","))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
