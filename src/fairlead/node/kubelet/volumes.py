"""Makes the folders of a pod's volumes on the host, and removes them with the pod.

Memory volumes are file systems of their own, mounted on the host and bound into each container that has them, so that
containers of one pod share one. A reboot takes them away; the next container's start makes them again, empty, as the
kubelet does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fairlead import errors, telemetry
from fairlead.engine.port import Engine
from fairlead.kernel.mounting import mount, subpath, tmpfs
from fairlead.node.isolation import ownfolder
from fairlead.node.kubelet import spec
from fairlead.node.tenancy import secrets, userids
from fairlead.plan.pod.values import secret, valuevolume
from fairlead.wire.kubernetes import core, names, quantity


def ensure(
    folder: Path,
    pod: core.Pod,
    claims: Mapping[str, Path] = MappingProxyType({}),
    owner: int | None = None,
    *,
    is_exported: bool = False,
    value_files: Mapping[str, tuple[secret.File, ...]] = MappingProxyType({}),
) -> dict[str, Path]:
    """Make what is missing and return the host path of each volume by name.

    Args:    folder: the pod's own.   claims: folders of the pod's claims, by the claim's name.
             owner: first of the pod's user ids on the host, which what is in its volumes belongs to; 0: they are the
             host's own; None: they stay as they are.
             is_exported: claims are on an NFS server, which says itself whose its files are.
             value_files: of the volumes whose files are values, by volume.
    Raises:  Unavailable (`MemoryVolumeFailed`, `VolumeUnusable`).
    """
    paths: dict[str, Path] = {}
    ownfolder.ensure(folder.parent)
    ownfolder.ensure(folder)
    for volume in pod.spec.volumes:
        if volume.host_path is not None:
            paths[volume.name] = Path(volume.host_path.path)
            continue
        if volume.persistent_volume_claim is not None:
            paths[volume.name] = _claimed(claims[volume.persistent_volume_claim.claim_name])
            continue
        path = folder / "volumes" / volume.name
        if valuevolume.is_of_values(volume):
            user = secrets.user_of(pod, volume.name)
            secrets.write(path, value_files[volume.name], user=user, first_id=owner or 0)
            paths[volume.name] = path
            continue
        path.mkdir(parents=True, exist_ok=True)
        source = volume.empty_dir or core.EmptyDirVolume()
        if source.medium == "Memory" and not path.is_mount():
            tmpfs.mount(path, size_bytes=_size(source))
        elif source.medium != "Memory":
            path.chmod(0o777)
        paths[volume.name] = path
    for volume in pod.spec.volumes:
        if is_exported and volume.persistent_volume_claim is not None:
            continue
        if owner is not None and volume.host_path is None and not valuevolume.is_of_values(volume):
            userids.own(paths[volume.name], owner)
    return paths


def show_parts(folder: Path, pod: core.Pod, item: core.Container, volumes: Mapping[str, Path]) -> dict[str, Path]:
    """Return where the parts of volumes are that a container mounts, by `spec.subpath_key`.

    Files of values are ours: no container writes links among them.
    Raises: Unavailable (`SubPathUnusable`).
    """
    ours = {one.name for one in pod.spec.volumes if valuevolume.is_of_values(one)}
    found = {}
    for number, one in enumerate(item.volume_mounts):
        if one.sub_path and one.name not in ours:
            place = folder / "parts" / item.name / str(number)
            subpath.show(volumes[one.name], one.sub_path, place)
            found[spec.subpath_key(item, number)] = place
    return found


def last_word_file(folder: Path, container: str, attempt: int) -> Path:
    """Return where a container's last word is kept."""
    return folder / "words" / f"{container}-{attempt}"


def ensure_last_word_file(folder: Path, container: str, attempt: int) -> Path:
    """Make the file that a container writes its last word to, which every user of it may write."""
    path = last_word_file(folder, container, attempt)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch()
    path.chmod(0o666)
    return path


def _claimed(path: Path) -> Path:
    """Make a claim's folder, which every user of the container may write and no user of the host may reach."""
    path.parent.parent.mkdir(exist_ok=True, mode=0o700)
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
    except OSError as error:
        message = f"the volume's folder {path} cannot be made: {error.strerror}"
        hint = "on an NFS export, root of this machine, or whom it is squashed to, must be able to write"
        raise errors.Unavailable(message, reason="VolumeUnusable", hint=hint) from error
    return path


def _size(source: core.EmptyDirVolume) -> int | None:
    return None if source.size_limit is None else quantity.parse_whole(source.size_limit)


def list_pods(folder: Path) -> frozenset[str]:
    """Return the uids of the pods that have a folder here, also of those that are gone."""
    try:
        return frozenset(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return frozenset()


async def find_unused(folder: Path, engine: Engine) -> frozenset[str]:
    """Return the uids of pods that have a folder and no container: a kill leaves it where the pod went meanwhile.

    Containers count whosever they are: those of a database that was set aside still have their volumes mounted.
    """
    found = await asyncio.to_thread(list_pods, folder)
    if not found:
        return found
    return found - {state.labels[names.POD_UID] for state in await engine.list_containers({names.POD_UID: ""})}


def discard(folder: Path) -> None:
    """Remove a pod's folder with everything in it; memory volumes first, so that nothing below them is walked."""
    for path in (folder / "parts").glob("*/*"):
        tmpfs.unmount(path)
    for path in (folder / "volumes").glob("*"):
        if path.is_mount():
            tmpfs.unmount(path)
    # A part of a volume that is still mounted would lose its files with the folder: they are not the pod's.
    left = folder.resolve()
    if any(one.place.is_relative_to(left) for one in mount.list_mounts()):
        telemetry.log.warning("folder of a pod is kept, something is mounted in it", path=str(folder))
        return
    shutil.rmtree(folder, ignore_errors=True)
