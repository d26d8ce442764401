"""Makes the root file system of `fairlead image demo`: this machine's static busybox under the names of its tools."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead import command, errors, temporary

_FOLDERS: Final = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr/bin")
_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"
_HINT: Final = "apt-get install busybox-static, or name one: --busybox PATH"
_LIST_S: Final = 10.0
_PT_INTERP: Final = 3
"""The program header that names a dynamic loader.  Source: elf(5)."""


@contextlib.contextmanager
def root(busybox: Path | None) -> Iterator[Path]:
    """Give a folder that is a whole small system for the length of a block.

    Args:    busybox: the program; None: the one that is installed.
    Raises:  Unavailable (`BusyboxMissing`): none is there, or it needs libraries that the image would not have.
    """
    program = _find(busybox)
    with temporary.folder(temporary.DEMO) as folder:
        for part in _FOLDERS:
            (folder / part).mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        (folder / "etc/passwd").write_text(_USERS)
        (folder / "etc/group").write_text(_GROUPS)
        shutil.copy(program, folder / "bin/busybox")
        (folder / "bin/busybox").chmod(0o755)
        for tool in _tools(program):
            (folder / "bin" / tool).symlink_to("busybox")
        # A temporary folder is its owner's alone; every user must be able to pass the image's root.
        folder.chmod(0o755)
        yield folder


def _find(named: Path | None) -> Path:
    found = named or command.find_program("busybox")
    if found is None:
        message = "busybox is not on this machine, and the demo image is made of it"
        raise errors.Unavailable(message, reason="BusyboxMissing", hint=_HINT)
    try:
        is_usable = is_static(found.read_bytes())
    except OSError as error:
        message = f"cannot read {found}: {error.strerror}"
        raise errors.Unavailable(message, reason="BusyboxMissing", hint=_HINT) from error
    if not is_usable:
        message = f"{found} is not a static program: it needs libraries that the image would not have"
        raise errors.Unavailable(message, reason="BusyboxMissing", hint=_HINT)
    return found


def is_static(program: bytes) -> bool:
    """Return whether a file is a little-endian ELF program that no dynamic loader starts."""
    if program[:4] != b"\x7fELF" or len(program) < 64 or program[5] != 1:
        return False
    # e_phoff, then e_phentsize and e_phnum; places differ between 64 and 32 bits.
    offset, sizes = ("<Q", 32), 54
    if program[4] == 1:
        offset, sizes = ("<I", 28), 42
    (start,) = struct.unpack_from(offset[0], program, offset[1])
    size, count = struct.unpack_from("<HH", program, sizes)
    if start + size * count > len(program):
        return False
    return all(struct.unpack_from("<I", program, start + size * n)[0] != _PT_INTERP for n in range(count))


def _tools(program: Path) -> list[str]:
    asked = command.run([str(program), "--list"], env=command.base_env(), timeout_s=_LIST_S)
    result = asyncio.run(asked)
    names = result.stdout.decode(errors="replace").split()
    if result.code != 0 or "sh" not in names:
        message = f"{program} --list does not name its tools: {result.last_line or f'it ended with {result.code}'}"
        raise errors.Unavailable(message, reason="BusyboxMissing", hint=_HINT)
    return [name for name in names if name != "busybox" and "/" not in name]
