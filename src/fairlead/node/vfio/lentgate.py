"""Keeps the VFIO nodes of vGPUs open that nobody holds by the ledger: the third gate, for parts of a board.

A board's row in the ledger stays Held while any of its vGPUs is; a vGPU is somebody's while a claim of that row names
it. Every other vGPU of the board is kept open here, also while a container has the whole board: a virtual function and
its board are never both in use. That each could be taken is the proof by which the board is released, so its reset
waits for its functions; a vGPU whose machine outlives its pod is withheld by itself, beside others that go on.

Not every kernel lets a vGPU be held: a simulated one has no VFIO behind its node, and a container may not be allowed
to open it. Then the other two gates stand, and the log says so once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.kernel import vfionode
from fairlead.model.driver import VGPU, DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.vfio import nodes, thirdgate
from fairlead.plan.lease.row import Row, State

STILL_OPEN: Final = "VGPUStillOpen"
"""Reason of a vGPU that no container has by the ledger, and that a program has open."""
_IN_USE: Final = frozenset({vfionode.IN_USE, thirdgate.HANGS, thirdgate.CHANGED})
"""What says that somebody has it, or may have; every other failure says that it cannot be held here."""
_CLASSES: Final = frozenset({"vfio", "vfio-dev"})


class LentGate:
    """Holds the nodes of the vGPUs that this machine lends."""

    def __init__(self, take_hold: thirdgate.TakeHold, *, patience_s: float = thirdgate.PATIENCE_S) -> None:
        """Hold none yet. Args: take_hold: as of whole GPUs; a vGPU's key and address are its id."""
        self._third: Final = thirdgate.ThirdGate(take_hold, patience_s=patience_s)
        self._boards: Mapping[str, str] = {}
        """Key of the board by vGPU."""
        self._used: dict[str, str] = {}
        """Why a vGPU that nobody should have could not be taken."""
        self._unkept: set[str] = set()

    def update(self, vgpus: Iterable[VGPU], boards: Mapping[str, GPUUUID]) -> None:
        """Know these vGPUs from now on. Args: boards: by PCI address; a vGPU of no known board is not held."""
        known = {one.id: one for one in vgpus if one.parent in boards and one.nodes}
        self._boards = {name: str(boards[one.parent]) for name, one in known.items()}
        self._third.update(_as_whole(one) for one in known.values())
        self._used = {name: why for name, why in self._used.items() if name in known}
        self._unkept &= known.keys()

    def give(self, rows: Iterable[Row]) -> None:
        """Let go of the vGPUs that claims of held boards name, and of no other; the rows must be on disk."""
        self._third.give({claim.device for row in rows if row.state is State.HELD for claim in row.claims})

    async def take(self, rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
        """Hold what no claim names; returns in words, by board that no container has, who keeps it from a release."""
        states = {row.key: row.state for row in rows}
        used = await self._take([name for name, board in self._boards.items() if board in states])
        found: dict[str, tuple[str, ...]] = {}
        for name, why in used.items():
            board = self._boards.get(name, "")
            if states.get(board) not in {None, State.HELD}:
                found[board] = (*found.get(board, ()), why)
        return found

    async def find_refusals(self, names: Collection[str]) -> dict[str, str]:
        """Take vGPUs that are about to be given away; returns why one cannot be, by its id."""
        return await self._take([name for name in names if name in self._boards])

    async def _take(self, names: Collection[str]) -> dict[str, str]:
        told = await self._third.take(names)
        used = {name: error.message for name, error in told.items() if error.reason in _IN_USE}
        for name in names:
            self._used.pop(name, None)
        self._used |= used
        for name in sorted(told.keys() - used.keys() - self._unkept):
            self._unkept.add(name)
            telemetry.log.warning("vgpu cannot be kept open", gpu=name, reason=told[name].reason, error=str(told[name]))
        return used

    @property
    def problems(self) -> Mapping[str, tuple[str, str]]:
        """Reason and message why a vGPU must not be given away, by its id."""
        return {name: (STILL_OPEN, f"no container has it, and {why}") for name, why in self._used.items()}

    def close(self) -> None:
        """Let go of all."""
        self._third.close()


def take_hold_below(root: Path) -> thirdgate.TakeHold:
    """Return what takes a vGPU's nodes, where they are VFIO's. Args: root: has /sys."""

    def take(gpu: PassthroughGPU) -> vfionode.Hold:
        for node in (*gpu.group_nodes, *gpu.iommufd_nodes):
            if not _is_vfio(root, node):
                message = f"{node.host_path} ({node.major}:{node.minor}) is not VFIO's by /sys/dev/char"
                raise errors.NotFound(message, reason=vfionode.GONE, hint="nothing keeps others from it")
        return nodes.take_hold(gpu)

    return take


def _is_vfio(root: Path, node: DeviceNode) -> bool:
    """Return whether a node is of VFIO's: a number alone may be another driver's, whose open has effects."""
    link = root / f"sys/dev/char/{node.major}:{node.minor}/subsystem"
    try:
        return link.readlink().name in _CLASSES or Path(node.path).name == "iommu"
    except OSError:
        return Path(node.path).name == "iommu"


def _as_whole(one: VGPU) -> PassthroughGPU:
    """Return a vGPU as what the third gate holds: its group, or its own nodes behind the iommufd."""
    iommu = tuple(node for node in one.nodes if Path(node.path).name == "iommu")
    own = tuple(node for node in one.nodes if node not in iommu)
    return PassthroughGPU(
        key=GPUUUID(one.id),
        vendor=Vendor.NVIDIA,
        address=one.id,
        group_nodes=() if iommu else own,
        iommufd_nodes=(*iommu, *own) if iommu else (),
    )
