"""Lets a test halt Kata's stand-in at a step, so that it can kill one of the processes there.

A test asks for a halt by a file named after the step; the process that comes there writes its pid beside it and waits
until the file is gone. Without a folder for them (`[stand_in] stops`) there are no halts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

STEPS: Final = (
    "asked",  # devices are known, nothing is opened
    "emulator",  # QEMU runs
    "made",  # QEMU has made the machine and has the devices
    "agent",  # the guest's agent has answered
    "sandbox",  # the machine is recorded
    "root",  # the container's root is in the guest
    "created",  # the container is recorded
    "started",  # its command runs
    "killing",  # the engine has asked for the end of a container
    "ending",  # and of the machine
    "ended",  # QEMU is gone
    "deleting",  # the engine has the sandbox forgotten
)
"""In the order of a pod's life."""
VERIFYING: Final = (
    "verifier-has",  # the verifier's machine has a GPU
    "verifier-read",  # it has read it, and not said so yet
)
"""Steps of the machine that reads a GPU between two pods (`verifierdouble`)."""
LIMIT_S: Final = 60.0


def reach(folder: str, step: str) -> None:
    """Halt here, if a test has asked for that."""
    asked = Path(folder, step)
    if not folder or not asked.exists():
        return
    part = Path(folder, f"{step}.part")
    part.write_text(str(os.getpid()))
    part.replace(Path(folder, f"{step}.reached"))
    until = time.monotonic() + LIMIT_S
    while asked.exists() and time.monotonic() < until:
        time.sleep(0.005)
