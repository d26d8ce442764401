"""Decides how a tenancy's NFS export is written and mounted. Pure.

An administrator names server and path; a tenant names volumes, each of which is a folder of the export. What the export
holds can be no device and no program that runs with rights of its own, whatever the options say.
Source: nfs(5), mount(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fairlead import errors
from fairlead.wire.fairlead.tenancy import NFSExport
from fairlead.wire.text.address import is_address

PORT: Final = 2049
KIND: Final = "nfs"
"""Begin of the types under which the kernel lists such a mount: nfs, nfs4."""
_ALWAYS: Final = ("nosuid", "nodev")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PATH: Final = re.compile(r"/[A-Za-z0-9._/@+-]*")
_OPTION: Final = re.compile(r"[a-z0-9]+(=[A-Za-z0-9._:-]+)?")
_NOT_ALLOWED: Final = frozenset({"suid", "dev", "bind", "rbind", "remount", "move", "ro"})
_LONGEST_PATH: Final = 1024


def parse(text: str) -> NFSExport:
    """Return the export that `SERVER:/PATH` names, with brackets around an address of IPv6.

    Raises: Invalid (`ExportInvalid`).
    """
    server, colon, path = text.partition(":/")
    found = NFSExport(server=server.removeprefix("[").removesuffix("]"), path=f"/{path}" if colon else "")
    if trouble := next(problems(found), None):
        raise errors.Invalid(f'"{text}" is not an NFS export: {trouble}', reason="ExportInvalid", hint="SERVER:/PATH")
    return found


def problems(found: NFSExport) -> Iterator[str]:
    """Yield what keeps an export from being mounted as written."""
    if not _NAME.fullmatch(found.server) and not is_address(found.server):
        yield f'the server "{found.server}" is neither a host name nor an address'
    if not _PATH.fullmatch(found.path) or ".." in found.path.split("/") or len(found.path) > _LONGEST_PATH:
        yield f'the path "{found.path}" is not one from the root, of letters, digits and ._/@+-'
    for one in found.options:
        if not _OPTION.fullmatch(one) or one.partition("=")[0] in _NOT_ALLOWED:
            yield f'"{one}" is not an option that is allowed'


def source(found: NFSExport) -> str:
    """Return the export as mount(8) takes it and the kernel lists it."""
    return f"[{found.server}]:{found.path}" if ":" in found.server else f"{found.server}:{found.path}"


def options(found: NFSExport) -> str:
    """Return the mount options; those that keep devices and privileges out are last, so that they count."""
    return ",".join((*found.options, *_ALWAYS))


def port(found: NFSExport) -> int:
    """Return where the server answers."""
    given = [one.removeprefix("port=") for one in found.options if one.startswith("port=")]
    return int(given[-1]) if given and given[-1].isdecimal() and len(given[-1]) <= len("65535") else PORT
