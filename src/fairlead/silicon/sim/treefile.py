"""Writes the files, links and nodes of a simulated machine, each only where it differs from what is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairlead import errors, files


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file unless it is already so; by rename, because containers may have the old one mounted."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, data, mode=mode, durable=False)


def ensure_link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def ensure_node(path: Path, major: int, minor: int, *, mode: int = 0o666) -> None:
    device = os.makedev(major, minor)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        state = path.lstat()
    except FileNotFoundError:
        state = None
    if state is not None and stat.S_ISCHR(state.st_mode) and state.st_rdev == device:
        return
    try:
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, device)
        path.chmod(mode)  # mknod's mode passes through the umask
    except PermissionError as error:
        message = f"this process may not make the device node {path} (c {major}:{minor})"
        hint = "simulated silicon needs root and CAP_MKNOD"
        raise errors.Unavailable(message, reason="DeviceNodesRefused", hint=hint) from error
