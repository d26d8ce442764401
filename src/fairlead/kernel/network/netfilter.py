"""Reads and writes the kernel's packet filter: the only module that calls iptables, for both families.

The table `mangle` is read as `iptables-save` prints it and written by `iptables-restore --noflush`, which the kernel
takes as one transaction. What stands in it is decided in `plan.tenancy.firewall`. Both flavours of the programs (over
nf_tables, and legacy) are called alike.
Source: iptables-save(8), iptables-restore(8).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fairlead import command, errors

_TIMEOUT_S: Final = 30.0
_LOCK_S: Final = 10
"""How long another program may hold the legacy tables' lock."""
_PREFIX: Final = {4: "iptables", 6: "ip6tables"}
_HINT: Final = "install iptables, and run Fairlead as root with CAP_NET_ADMIN"


def families(root: Path = Path("/")) -> tuple[int, ...]:
    """Return the families of addresses that the kernel has: 4, and 6 where it was not switched off."""
    return (4, 6) if (root / "proc/net/if_inet6").exists() else (4,)


async def saved(family: int) -> str:
    """Return the table `mangle`. Raises: Unavailable (`NetfilterUnusable`): the programs or the rights are missing."""
    return await _run((f"{_PREFIX[family]}-save", "-t", "mangle"))


async def restore(family: int, payload: str) -> None:
    """Carry out a transaction on the table; all of it is in force on return, or nothing. Raises: as `saved`."""
    await _run((f"{_PREFIX[family]}-restore", "--noflush", "-w", str(_LOCK_S)), payload)


async def _run(argv: tuple[str, ...], given: str = "") -> str:
    stdin = os.memfd_create("rules")
    try:
        os.write(stdin, given.encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        try:
            result = await command.run(argv, env=command.base_env(), timeout_s=_TIMEOUT_S, stdin=stdin)
        except errors.Unavailable as error:
            message = f"packets cannot be filtered here: {error.message}"
            raise errors.Unavailable(message, reason="NetfilterUnusable", hint=_HINT) from error
    finally:
        os.close(stdin)
    if result.code != 0:
        message = f"packets cannot be filtered here: {argv[0]} says: {result.last_line}"
        raise errors.Unavailable(message, reason="NetfilterUnusable", hint=_HINT)
    return result.stdout.decode(errors="replace")
