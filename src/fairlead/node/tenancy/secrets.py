"""Gives a pod's containers what they take from Secrets: variables, and files in memory that the host never stores.

Each volume of a Secret is a file system in memory, mounted on the host and bound read-only into the containers that
have it. Its files are the container's user's alone (0400) where the pod says that user by number, else readable for
every user of the container. Each start of a container reads the Secrets anew; what runs keeps what it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fairlead import errors, files
from fairlead.kernel.mounting import tmpfs
from fairlead.plan.pod.values import configmap, downward, secret, valuevolume
from fairlead.plan.tenancy import userids
from fairlead.store import sealing
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core

_SIZE_BYTES: Final = 4 << 20
"""Of a volume: a Secret has 1 MiB at most, and a file is replaced while the old one is there."""
_ALONE, _EVERYBODY = 0o400, 0o444


async def held(store: Store, pod: core.Pod, state: Path) -> dict[str, secret.Values]:
    """Return the Secrets that a pod names and that are there, by name.

    Args:    state: the folder that has the key.
    Raises:  ProtocolError: one cannot be opened.
    """
    found, seal = dict[str, secret.Values](), sealing.Seal(state / sealing.KEY_FILE)
    for name in secret.names(pod.spec):
        with contextlib.suppress(errors.NotFound):
            found[name] = seal.opened(await store.get(core.Secret, name, pod.metadata.namespace))
    return found


async def config_maps(store: Store, pod: core.Pod) -> dict[str, core.ConfigMap]:
    """Return the ConfigMaps that a pod names and that are there, by name."""
    found = dict[str, core.ConfigMap]()
    for name in valuevolume.map_names(pod.spec):
        with contextlib.suppress(errors.NotFound):
            found[name] = await store.get(core.ConfigMap, name, pod.metadata.namespace)
    return found


def plan_files(
    pod: core.Pod,
    values: Mapping[str, secret.Values],
    maps: Mapping[str, core.ConfigMap] = MappingProxyType({}),
    facts: downward.Facts = downward.UNKNOWN,
) -> dict[str, tuple[secret.File, ...]]:
    """Return the files of the pod's volumes of values, by volume. Raises: as `plan.pod.values.valuevolume.files`."""
    contents = {name: configmap.contents(one) for name, one in maps.items()}
    return {
        one.name: valuevolume.files(pod, one, secrets=values, maps=contents, facts=facts)
        for one in pod.spec.volumes
        if valuevolume.is_of_values(one)
    }


def is_waited_for(error: errors.FairleadError) -> bool:
    """Return whether it says that a Secret is not there yet, for which a container waits however long it takes."""
    return isinstance(error, errors.NotFound) and error.reason == secret.MISSING


def user_of(pod: core.Pod, volume: str) -> int | None:
    """Return the number of the user that has a volume alone; None: there are several, or an image says it."""
    users = set()
    for item in (*pod.spec.init_containers, *pod.spec.containers):
        if any(mount.name == volume for mount in item.volume_mounts):
            contexts = [one for one in (item.security_context, pod.spec.security_context) if one is not None]
            users.add(next((one.run_as_user for one in contexts if one.run_as_user is not None), None))
    by_name = pod.spec.machine is not None and pod.spec.machine.user
    return users.pop() if len(users) == 1 and not by_name else None


def write(folder: Path, wanted: tuple[secret.File, ...], *, user: int | None, first_id: int) -> None:
    """Bring a volume to what it should hold. Idempotent; a file that is as it should be is left alone.

    Args:    user: as `user_of` says.   first_id: of the user namespace on the host; 0: it has none.
    Raises:  Unavailable (`MemoryVolumeFailed`, `StateWriteFailed`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_mount():
        most = sum(len(one.data) for one in wanted)
        tmpfs.mount(folder, size_bytes=max(_SIZE_BYTES, 4 * most))
        folder.chmod(0o755)
    kept = {folder / one.path for one in wanted}
    for path in (path for path in folder.rglob("*") if path.is_file() and path not in kept):
        path.unlink()
    owner = userids.shifted(user or 0, first_id)
    for one in wanted:
        try:
            _write(folder / one.path, one, mode=_EVERYBODY if user is None else _ALONE, owner=owner)
        except OSError as error:
            message = f'the file "{errors.readable(one.path)}" of a secret cannot be written: {error.strerror}'
            hint = "may two items of the volume lie in each other's way?"
            raise errors.Unavailable(message, reason="MemoryVolumeFailed", hint=hint) from error


def _write(path: Path, wanted: secret.File, *, mode: int, owner: int) -> None:
    """Write one file. Args: mode: where it names none."""
    mode = mode if wanted.mode is None else wanted.mode
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != wanted.data:
        files.write_atomic(path, wanted.data, mode=mode, durable=False)
    path.chmod(mode)
    os.chown(path, owner, owner)
