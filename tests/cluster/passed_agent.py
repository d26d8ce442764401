"""`fairlead agent` on a made-up HGX board: the shipped agent, with doubles for opening a VFIO node and for a reset.

    python passed_agent.py ROOT [OPTIONS OF fairlead agent]

ROOT has the board's tree (`pcitree`), the stub of NVIDIA's library and the Fabric Manager's socket. A group's node is a
file that takes one opener by `flock`; a reset adds a line to `resets`. The node's GPUs are in no machine: what is real
beside it is the kubelet, whose folders are those of production.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.cli import main as main_program
from fairlead.model.driver import PassthroughGPU
from fairlead.node.vfio import gpus, nodes

sys.path.insert(0, str(Path(__file__).parents[2]))  # this file is run by its path, from whichever folder

from tests import nodehold


def main(root: Path, *words: str) -> int:
    """Be the agent. Args: words: more of its options."""
    folder = root / "nodes"
    folder.mkdir(exist_ok=True)

    def take_hold(one: PassthroughGPU) -> nodehold.NodeHold:
        return nodehold.hold(folder / one.address, one.address, may_make=True)

    async def reset(_: object, one: PassthroughGPU) -> None:
        with (root / "resets").open("a") as file:
            file.write(f"{one.address}\n")

    nodes.take_hold = take_hold  # type: ignore[assignment]
    gpus.PassthroughGPUs.reset = reset  # type: ignore[assignment,method-assign]
    env = {
        "FAIRLEAD_NODE_VFIO": "bound",
        "FAIRLEAD_NODE_FABRIC": "on",
        "FAIRLEAD_NODE_ENGINE": "containerd://2.2.1",
        "FAIRLEAD_NODE_KUBELET_FOLDER": "/var/lib/kubelet/device-plugins",
        "FAIRLEAD_NODE_HOST_MOUNT": str(root),
        "FAIRLEAD_SILICON_ROOT": str(root),
        "FAIRLEAD_FABRIC_MANAGER": str(root / "fm.sock"),
        "FAIRLEAD_FABRIC_LIBRARY": str(root / "libnvfm.so.1"),
        "FAIRLEAD_LEASE_LEDGER": "on",
        "FAIRLEAD_STATE_FOLDER": str(root / "state"),
        "FAIRLEAD_STATE_RUN": str(root / "state/run"),
    }
    return main_program.invoke(["agent", *words], env=env)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
