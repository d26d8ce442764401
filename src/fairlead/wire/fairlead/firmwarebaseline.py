"""Declares `FirmwareBaseline`: what firmware one node may have on one kind of board, so that kubectl shows who waits.

The agent of the node writes it from what it saw and what persons decided there (`node.publish.baselines`), where GPUs
are verified between tenants (`lease.reuse`). An object is a projection: nothing is approved by writing to it, and one
that is deleted takes no approval back. The structs are also the source of the CustomResourceDefinition
(`tools/generate_crds.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.gpudevice import API_VERSION as _GROUP
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire

SEEN: Final = "Seen"
PROPOSED: Final = "Proposed"
APPROVED: Final = "Approved"
STATES: Final = (SEEN, PROPOSED, APPROVED)


class FirmwareBaselineSpec(Wire, frozen=True):
    """Which baseline it is; it never changes."""

    node_name: str
    """Name of the node that keeps it."""
    board: str
    """Kind of board: PCI device, subsystem and part number, as `fairlead lease baseline list` has it."""


class FirmwareBaselineStatus(Wire, frozen=True):
    """What was seen on boards of the kind, and what persons decided."""

    state: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(STATES)})] = ""
    """Seen: no person approved anything, and no GPU of the kind is given away. Proposed: one person did, and another
    must. Approved: it is in force; what is proposed since then is not yet."""
    vbios: tuple[str, ...] = ()
    """Versions of the video BIOS that are approved, or proposed."""
    inforom: tuple[str, ...] = ()
    """Versions of the InfoROM, likewise."""
    link_width: int = 0
    """Fewest PCIe lanes, likewise; 0: not known."""
    ecc: bool | None = None
    """Whether ECC is on, likewise; left out: the board has none."""
    unapproved: tuple[str, ...] = ()
    """Versions that were seen on the node and are not among those; GPUs that have them are kept back."""
    unapproved_versions: str = ""
    """The same, joined by commas: what `kubectl get` shows."""
    approvals: int = 0
    """How many persons must approve it (lease.approvals)."""
    approvers: tuple[str, ...] = ()
    """Who approved what is in force, in their order."""
    approved_by: str = ""
    """The same, joined by commas: what `kubectl get` shows."""
    approved_at: str = ""
    """When the last of them did, RFC 3339."""
    proposed_by: str = ""
    """Who approved what another person must approve now; empty: nothing waits."""
    proposed_at: str = ""
    """When, RFC 3339."""


class FirmwareBaseline(Wire, frozen=True, kw_only=True):
    """Firmware that is allowed on one kind of board of one node."""

    API_VERSION: ClassVar[str] = _GROUP
    KIND: ClassVar[str] = "FirmwareBaseline"
    PLURAL: ClassVar[str] = "firmwarebaselines"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: FirmwareBaselineSpec
    status: FirmwareBaselineStatus = FirmwareBaselineStatus()
