"""Limits the inotify instances of a user namespace, which the kernel also counts as those of the user who made it.

Root makes the namespaces of containers, and has 128 instances by default: a container that held them all would leave
none to systemd, the kubelet or the agent. The limit of a namespace is a sysctl that its own root may write; so does
this, as a process that enters it.
Source: inotify(7); user_namespaces(7); kernel/ucount.c, set_permissions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import command, errors

_SYSCTL: Final = "/proc/sys/user/max_inotify_instances"
_PART: Final = 4
_FEWEST: Final = 16
"""Of a namespace: a notebook server with its kernels has some ten."""
_TIMEOUT_S: Final = 10.0


def limit(root: Path = Path("/")) -> int:
    """Return how many instances root may hold on this machine. Raises: OSError."""
    return int((root / _SYSCTL.lstrip("/")).read_text())


def share(root: Path = Path("/")) -> int:
    """Return how many instances one user namespace may hold: a quarter of what root may. Raises: OSError."""
    return max(_FEWEST, limit(root) // _PART)


def count(root: Path = Path("/")) -> int:
    """Return how many descriptors of instances the processes of this machine hold, as far as they can be read."""
    found = 0
    for link in (root / "proc").glob("[0-9]*/fd/*"):
        try:
            found += str(link.readlink()) == "anon_inode:inotify"
        except OSError:
            continue  # it is closed by now
    return found


def has_own_users(pid: int, root: Path = Path("/")) -> bool:
    """Return whether a process is in another user namespace than this one. Raises: OSError."""
    return (root / f"proc/{pid}/ns/user").readlink() != (root / "proc/self/ns/user").readlink()


async def confine(pid: int) -> None:
    """Limit the user namespace of a process; nothing where it is ours.

    Raises: Unavailable (`InotifyUnlimited`): it could not be done.
    """
    try:
        if not has_own_users(pid):
            return
        most = share()
    except (OSError, ValueError) as error:
        raise _unlimited(str(error)) from error
    line = ("nsenter", f"--user=/proc/{pid}/ns/user", "--", "sh", "-c", f"echo {most} > {_SYSCTL}")
    done = await command.run(line, env=command.base_env(), timeout_s=_TIMEOUT_S)
    if done.code != 0:
        raise _unlimited(done.last_line)


def _unlimited(why: str) -> errors.Unavailable:
    message = f"the inotify instances of a user namespace cannot be limited: {why}"
    return errors.Unavailable(message, reason="InotifyUnlimited", hint="`sysctl fs.inotify.max_user_instances=8192`")
