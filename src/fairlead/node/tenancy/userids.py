"""Puts tenants' containers into user namespaces: root inside has no rights on the host or over other tenants' files.

All containers of a pod have one user namespace or none, since they share its network. Where one is not to be had, the
container runs with the host's ids and its trace has the reason, unless the setting asks for one always.

Two things keep a pod out of it. A createContainer hook runs inside the namespace, and may not read the bundle there.
And an OCI runtime may make no device node in it: it binds the host's, by a path that root of the namespace must reach.
That path is the container's own in runc and crun, whatever the configuration says. A node that lies elsewhere on the
host, as those of simulated GPUs do, is therefore bound as a file is, whose source the runtime opens as root: its folder
may be closed. What has podman write the rule for its cgroup is a node of the same numbers that only root may open, in a
folder that others may pass (podman 4.3 forgets `--device-cgroup-rule` in user namespaces).
Source: user_namespaces(7); runc 1.1 libcontainer/rootfs_linux.go, bindMountDeviceNode; container_linux.go,
shouldSendMountSources.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.engine.port import Bind, ContainerSpec
from fairlead.kernel import inotify
from fairlead.model.container import isolation
from fairlead.node.isolation import edits
from fairlead.plan.tenancy import userids

_PASSABLE: Final = 0o711
_REASON: Final = "UserNamespaceUnusable"


def machine_problem(root: Path = Path("/")) -> str:
    """Return why no container of this machine can have a user namespace; empty: it can."""
    if not (root / "proc/self/ns/user").exists():
        return "the kernel has no user namespaces (CONFIG_USER_NS)"
    if _read(root / "proc/sys/user/max_user_namespaces").strip() == "0":
        return "user namespaces are switched off (user.max_user_namespaces is 0)"
    rows = [line.split() for line in _read(root / "proc/self/uid_map").splitlines()]
    if not any(int(first) <= userids.FIRST and int(first) + int(count) > userids.LAST for first, _, count in rows):
        return f"the service itself is in a user namespace that has no ids {userids.FIRST} to {userids.LAST}"
    return ""


def pod_problem(found: Iterable[edits.Resolved], folder: Path) -> str:
    """Return why a pod with these devices can have no user namespace; empty: it can.

    Args: found: what the CDI specs say of each container.   folder: for the nodes of `_stand_in`.
    """
    for one in found:
        if one.hooks:
            return f"{one.hooks[0]}, which a CDI spec names as a hook, cannot run inside of one"
        for source, place, _ in one.nodes:
            needed = source if source == place else str(folder / "node")
            if (closed := _closed_folder(needed, besides=folder)) is not None:
                return f"{closed} is closed to others, so that {source} cannot be shown inside of one"
    return ""


def decide(
    owner: userids.Owner | None,
    found: Iterable[edits.Resolved],
    folder: Path,
    *,
    setting: str,
    has_mounts: bool = False,
    root: Path = Path("/"),
) -> tuple[int | None, str]:
    """Return the first user id of a pod's user namespace, or None and why it has none.

    Args:   owner: None: it belongs to no tenant.   found, folder: as of `pod_problem`.
            setting: `engine.user_namespaces`.
            has_mounts: it mounts folders of the machine, where the host's root would read everything.
    Raises: Unavailable (`UserNamespaceUnusable`): it must have one.
    """
    if setting == "never" and not has_mounts:
        return None, ""
    problem = "engine.user_namespaces is never" if setting == "never" else ""
    name, first = (owner.name, owner.first) if owner is not None else ("no tenant", 0)
    problem = problem or (machine_problem(root) if first else "it has no user ids yet")
    problem = problem or pod_problem(found, folder)
    if problem and has_mounts:
        message = f"a container of {name} that mounts folders of the machine has no user namespace: {problem}"
        raise errors.Unavailable(message, reason=_REASON, hint="mend it, or leave out -v /FOLDER:/PATH")
    if problem and setting == "always":
        message = f"a container of {name} has no user namespace: {problem}"
        raise errors.Unavailable(message, reason=_REASON, hint="mend it, or set engine.user_namespaces to auto")
    return (None, problem) if problem else (first, "")


def mapped(wanted: ContainerSpec, first: int | None, found: edits.Resolved, folder: Path) -> ContainerSpec:
    """Return a container in its user namespace, its devices so that an OCI runtime can show them there.

    Args:   first: of the tenant's ids; None: it has none.   folder: for the nodes of `_stand_in`.
    Raises: Unavailable (`DeviceNodeMissing`).
    """
    if first is None:
        return wanted
    nodes = [*found.nodes, *wanted.device_nodes]
    within = dataclasses.replace(wanted, first_user_id=first)
    if wanted.runtime == isolation.GVISOR_CLASS:  # it makes no node, and finds GPUs by the device list alone
        return within
    moved = [(source, place, rights) for source, place, rights in nodes if source != place]
    if not moved:
        return within
    return dataclasses.replace(
        within,
        cdi_devices=(),
        env={**wanted.env, **dict(text.split("=", 1) for text in found.env)},
        device_nodes=(
            *((source, place, rights) for source, place, rights in nodes if source == place),
            *((made := _stand_in(source, folder), made, rights) for source, _, rights in moved),
        ),
        binds=(
            *wanted.binds,
            *(Bind(host_path=source, container_path=place, is_read_only=ro) for source, place, ro in found.binds),
            *(Bind(host_path=source, container_path=place, is_device=True) for source, place, _ in moved),
        ),
    )


def _stand_in(source: str, folder: Path) -> str:
    """Return the path of a node with a source's numbers, made where it is missing. Raises: Unavailable."""
    try:
        found = Path(source).stat()
        kind = stat.S_IFMT(found.st_mode)
        letter = "b" if stat.S_ISBLK(found.st_mode) else "c"
        path = folder / f"{letter}-{os.major(found.st_rdev)}-{os.minor(found.st_rdev)}"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_PASSABLE)
        with contextlib.suppress(FileExistsError):
            os.mknod(path, kind | 0o600, found.st_rdev)
    except OSError as error:
        message = f"the device node {source} cannot be looked at, or made anew below {folder}: {error.strerror}"
        hint = "a CDI spec names it, `fairlead cdi lint` says which"
        raise errors.Unavailable(message, reason="DeviceNodeMissing", hint=hint) from error
    return str(path)


async def confine(pid: int | None, container: str) -> None:
    """Limit what the user namespace of a container takes of the machine; the log has what could not be done."""
    if pid is None:
        return
    try:
        await inotify.confine(pid)
    except errors.Unavailable as error:
        telemetry.log.warning(
            "user namespace not limited", container=container, reason=error.reason, error=error.message
        )


def own(folder: Path, first: int) -> None:
    """Make a folder of a volume, with all in it, the tenant's: ids of another range become those of this one.

    Idempotent, and cheap once done. The folder itself is last: a death in between leaves it to be done again.
    Args: first: of the range; 0: the host's own ids.
    """
    if userids.base(folder.stat(follow_symlinks=False).st_uid) == first:
        return
    for _, folders, files, handle in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            _own(name, first, handle)
    _own(str(folder), first, None)


def _own(name: str, first: int, folder: int | None) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    uid, gid = userids.shifted(found.st_uid, first), userids.shifted(found.st_gid, first)
    os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
    if found.st_mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(found.st_mode):
        _restore_mode(name, found, folder)  # chown takes these bits away


def _restore_mode(name: str, found: os.stat_result, folder: int | None) -> None:
    """Give a file the mode that it had, and no other: a tenant may have put a link in its place by now.

    Raises: OSError: it has; the volume is looked at again with the next start.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.path.samestat(os.fstat(handle), found):
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
    finally:
        os.close(handle)


def _closed_folder(path: str, *, besides: Path) -> Path | None:
    """Return the uppermost folder on the way to a path that others may not pass; None: they reach it.

    Args: besides: a folder that `_stand_in` makes passable before the container starts.
    """
    for folder in reversed(Path(path).parents):
        if folder == besides:
            continue
        try:
            if not folder.stat().st_mode & stat.S_IXOTH:
                return folder
        except OSError:
            return None  # the engine says what is missing
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
