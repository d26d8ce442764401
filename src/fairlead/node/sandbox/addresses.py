"""Keeps the addresses of pods on gVisor, which nothing of the kernel shows once they run.

gVisor takes the addresses of the network namespace that it is given, and answers for them with a stack of its own. They
are read while the sandbox is held, and lie in a file of the pod's folder for as long as the pod does. Such a pod is
reached from the host by them: a connection from inside its namespace leads nowhere.
Source: gVisor runsc/sandbox/network.go (createInterfacesAndRoutesFromNS, removeAddress).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.kernel.network import address

_FILE: Final = "addresses.json"


def keep(folder: Path, pid: int) -> None:
    """Keep the addresses in the network namespace of a sandbox that is not started yet.

    Args:    folder: the pod's.   pid: of the sandbox.
    Raises:  Unavailable (`AddressesUnkept`).
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = address.of_process(pid)
        if found or not (folder / _FILE).exists():  # gVisor has them by now where it was let go after all
            files.write_atomic(folder / _FILE, msgspec.json.encode(found))
    except OSError as error:
        message = f"the pod's addresses cannot be kept in {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="AddressesUnkept", hint=files.next_step(error)) from error


def read(folder: Path) -> tuple[str, ...]:
    """Return the addresses that were kept; none: there are none, or the file is gone."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.MsgspecError):
        return ()
