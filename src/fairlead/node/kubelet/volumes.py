"""Makes the folders of a pod's volumes on the host, and removes them with the pod.

Memory volumes are file systems of their own, mounted on the host and bound into each container that has them, so that
containers of one pod share one. A reboot takes them away; the next container's start makes them anew, empty, as the
kubelet does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fairlead import errors
from fairlead.engine.port import Engine
from fairlead.kernel import tmpfs
from fairlead.node.isolation import ownfolder
from fairlead.node.tenancy import secrets, userids
from fairlead.plan.pod import secret
from fairlead.wire.kubernetes import core, names, quantity


def ensure(
    folder: Path,
    pod: core.Pod,
    claims: Mapping[str, Path] = MappingProxyType({}),
    owner: int | None = None,
    *,
    is_exported: bool = False,
    secret_files: Mapping[str, tuple[secret.File, ...]] = MappingProxyType({}),
) -> dict[str, Path]:
    """Make what is missing and return the host path of each volume by name.

    Args:    folder: the pod's own.   claims: folders of the pod's claims, by the claim's name.
             owner: first of the pod's user ids on the host, which what is in its volumes belongs to; 0: they are the
             host's own; None: they stay as they are.
             is_exported: claims are on an NFS server, which says itself whose its files are.
             secret_files: of the volumes of Secrets, by volume.
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
        if volume.secret is not None:
            user = secrets.user_of(pod, volume.name)
            secrets.write(path, secret_files[volume.name], user=user, first_id=owner or 0)
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
        if owner is not None and volume.host_path is None and volume.secret is None:
            userids.own(paths[volume.name], owner)
    return paths


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
    volumes = folder / "volumes"
    if volumes.is_dir():
        for path in volumes.iterdir():
            if path.is_mount():
                tmpfs.unmount(path)
    shutil.rmtree(folder, ignore_errors=True)
