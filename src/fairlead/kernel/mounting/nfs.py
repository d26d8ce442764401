"""Mounts what an NFS server exports, and tells what is mounted where.

Source: mount(8), nfs(5), proc_pid_mountinfo(5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import command, errors
from fairlead.kernel.mounting import mount as mounts

unmount: Final = mounts.unmount
PATIENCE_S: Final = 20.0
_HELPER: Final = "mount.nfs"
_NONE: Final = ("", "")


async def mount(source: str, folder: Path, options: str) -> None:
    """Mount an export. Raises: Unavailable (`ExportNotMounted`): no helper, no server, or it refuses."""
    hint = f"by hand: `mount -t nfs -o {options} {source} /mnt`"
    if command.find_program(_HELPER) is None:
        message = f"{source} cannot be mounted: {_HELPER} is not installed"
        raise errors.Unavailable(message, reason="ExportNotMounted", hint="it comes with nfs-common or nfs-utils")
    line = ("mount", "-t", "nfs", "-o", options, "--", source, str(folder))
    result = await command.run(line, env=command.base_env(), timeout_s=PATIENCE_S)
    if result.code != 0:
        message = f"{source} cannot be mounted: {result.last_line or f'exit code {result.code}'}"
        raise errors.Unavailable(message, reason="ExportNotMounted", hint=hint)


def mounted(folder: Path, root: Path = Path("/")) -> tuple[str, str]:
    """Return type and source of what is mounted at a folder last; empty: nothing. Asks no server."""
    found = _NONE
    for one in mounts.list_mounts(root):
        if one.place == folder:
            found = (one.kind, one.source)
    return found
