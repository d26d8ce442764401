"""Makes the image of a Service VM with what stands in for the Fabric Manager: Python, Fairlead, the stub."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import machine
from hgx import emulator

from tests.fabricstub import library

HERE = Path(__file__).parent
MEMORY_MIB = 384
_WORDS = "loglevel=3 no_timer_check nowatchdog"
_STUB = HERE.parents[1] / "fabricstub"


def write(folder: Path, *, switches: int, secret: str = "") -> None:
    """Write kernel, initramfs and command-line into a folder.

    Args: switches: the Manager starts with so many alone.   secret: what the agents share; empty: its port tells it.
    """
    made = library.compile_library(folder)
    files = {"stub/libnvfm.so.1": made.read_bytes()}
    files |= {f"stub/tests/fabricstub/{one}": (_STUB / one).read_bytes() for one in ("manager.py", "lattice.py")}
    files |= {"etc/fabric.secret": secret.encode()} if secret else {}
    contents = machine.Contents(guest=HERE / "serviceguest.py", modules=(), programs=(), files=files)
    machine.pack(folder / "initramfs", contents)
    shutil.copy(emulator.own_kernel().image, folder / "kernel")
    (folder / "command-line").write_text(f"{_WORDS} switches={switches}\n")


def write_program(path: Path, root: Path, *words: str) -> None:
    """Write QEMU as one program. Args: root: where its folder is.   words: further ones of its command line."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join([*emulator.program(root), *words])} "$@"\n')
    path.chmod(0o755)
