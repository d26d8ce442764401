"""Runs the pod sandbox: one tiny process that holds the network namespace of a pod's containers.

Only pods of more than one container get one; a single container owns its namespace. The process is a static program of
under 200 bytes that sleeps until it is killed, written here instruction by instruction, so that no image from any
registry and nothing of the host is needed.
Source: System V ABI, ELF-64 object file format; Linux system call tables (x86-64: pause 34; aarch64: ppoll 73).
"""

from __future__ import annotations

import struct
from typing import Final

from fairlead import errors, temporary
from fairlead.engine.port import Images

IMAGE: Final = "localhost/fairlead/pause:1"
CONTAINER: Final = "sandbox"
"""The sandbox's container name in labels; a pod's own container of this name carries an attempt as well."""

_LOAD: Final = 0x400000
# mov eax, 34; syscall; jmp back
_X86_64: Final = bytes.fromhex("b8220000000f05ebf7")
# mov x8, 73; mov x0..x4, 0; svc 0; b back
_AARCH64: Final = struct.pack(
    "<8I", 0xD2800928, 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800004, 0xD4000001, 0x17FFFFF9
)
_MACHINES: Final = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}


def pause_program(machine: str) -> bytes:
    """Return a static ELF executable that sleeps for ever.

    Args:   machine: as `uname -m` prints it.   Raises: Unavailable: we have no program for that processor.
    """
    if machine not in _MACHINES:
        message = f'no sandbox program for processor "{machine}" (offered: {", ".join(_MACHINES)})'
        raise errors.Unavailable(message, reason="SandboxUnsupported", hint="run pods of one container only")
    number, code = _MACHINES[machine]
    headers = 64 + 56
    size = headers + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _LOAD + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD, _LOAD, size, size, 0x1000)
    return header + segment + code


async def ensure_image(images: Images, machine: str) -> str:
    """Make the sandbox image where it is missing; returns its name."""
    if not await images.exists(IMAGE):
        with temporary.folder(temporary.PAUSE) as folder:
            program = folder / "pause"
            program.write_bytes(pause_program(machine))
            program.chmod(0o755)
            await images.import_root(folder, IMAGE, command=("/pause",))
    return IMAGE
