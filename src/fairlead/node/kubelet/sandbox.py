"""Runs the pod sandbox: one tiny process that holds the namespaces that a pod's containers share.

Pods of more than one container get one for their network; a single container owns its namespace. Where containers see
each other's processes too, the sandbox is process 1 of all: it ignores SIGCHLD, so that the kernel reaps what it
inherits. The process is a static program of under 250 bytes that sleeps until it is killed, written here instruction by
instruction, so that no image from any registry and nothing of the host is needed.
Source: System V ABI, ELF-64 object file format; Linux system call tables (x86-64: rt_sigaction 13, pause 34; aarch64:
rt_sigaction 134, ppoll 73); sigaction(2), "NOTES" (SIGCHLD ignored: no zombies).
"""

from __future__ import annotations

import struct
from typing import Final

from fairlead import errors, temporary
from fairlead.engine.port import Images

IMAGE: Final = "localhost/fairlead/pause:2"
CONTAINER: Final = "sandbox"
"""The sandbox's container name in labels; a pod's own container of this name carries an attempt as well."""

_LOAD: Final = 0x400000
_IGNORED: Final = struct.pack("<4Q", 1, 0, 0, 0)
"""The kernel's struct sigaction: handler SIG_IGN, no flags, no restorer, no mask."""
# mov eax, 13; mov edi, 17; lea rsi, [_IGNORED]; xor edx, edx; mov r10d, 8; syscall
# mov eax, 34; syscall; jmp back; 4 bytes up to the structure
_X86_64: Final = bytes.fromhex("b80d000000 bf11000000 488d3517000000 31d2 41ba08000000 0f05")
_X86_64_PAUSE: Final = bytes.fromhex("b822000000 0f05 ebf7 00000000")
# mov x8, 134; mov x0, 17; adr x1, _IGNORED; mov x2, 0; mov x3, 8; svc 0
_AARCH64: Final = struct.pack("<6I", 0xD28010C8, 0xD2800220, 0x10000181, 0xD2800002, 0xD2800103, 0xD4000001)
# mov x8, 73; mov x0..x4, 0; svc 0; b back
_AARCH64_PAUSE: Final = struct.pack(
    "<8I", 0xD2800928, 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800004, 0xD4000001, 0x17FFFFF9
)
_MACHINES: Final = {
    "x86_64": (62, _X86_64 + _X86_64_PAUSE + _IGNORED),
    "aarch64": (183, _AARCH64 + _AARCH64_PAUSE + _IGNORED),
}


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
