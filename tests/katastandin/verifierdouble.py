"""Plays the machine of the node's own that reads a GPU between two tenants, as a process that can be killed.

It takes the GPU's VFIO node as QEMU does, ends with the agent as that does, and says which memory it found: what a
tenant left there is a violation. Its report is one line of JSON, at its end.

    python -m tests.katastandin.verifierdouble ROOT PCI-ADDRESS
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

from tests.katastandin import emulatordouble, stops

_PR_SET_PDEATHSIG = 1


def main(root: Path, address: str) -> None:
    """Read one GPU."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    group = (root / "sys/bus/pci/devices" / address / "iommu_group").resolve().name
    handle = os.open(root / "dev/vfio" / group, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    stops.reach(str(root / "stops"), "verifier-has")
    if found := (root / "memory" / address).read_text():
        emulatordouble.note(root, f"the verifier reads what {found} left in {address}")
    stops.reach(str(root / "stops"), "verifier-read")
    sys.stdout.write(json.dumps({"module": int(group)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
