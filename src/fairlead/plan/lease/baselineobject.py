"""Shows how the kinds of boards of a node stand as FirmwareBaselines. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from fairlead.plan.lease import baseline
from fairlead.wire.fairlead import firmwarebaseline as wire
from fairlead.wire.kubernetes import core, meta

_LONGEST_NODE: Final = 200
"""Characters of a node's name in an object's, which may have 253."""
_DIGITS: Final = 10


def show(node: core.Node, found: baseline.Standing) -> wire.FirmwareBaseline:
    """Return the object of one kind of board; it goes with its Node."""
    name = node.metadata.name
    owner = meta.OwnerReference(api_version=node.API_VERSION, kind=node.KIND, name=name, uid=node.metadata.uid)
    return wire.FirmwareBaseline(
        metadata=meta.ObjectMeta(name=object_name(found.board, name), owner_references=(owner,)),
        spec=wire.FirmwareBaselineSpec(node_name=name, board=found.board),
        status=_status(found),
    )


def object_name(board: str, node: str) -> str:
    """Return the name of an object: what hardware calls a board need not be a name, a digest of it is."""
    digest = hashlib.sha256(board.encode()).hexdigest()[:_DIGITS]
    return f"{node[:_LONGEST_NODE].strip('-.')}.{digest}"


def _status(found: baseline.Standing) -> wire.FirmwareBaselineStatus:
    shown, allowed, proposed = found.baseline, found.allowed, found.proposed
    approvers = allowed.approvers if allowed else ()
    return wire.FirmwareBaselineStatus(
        state=wire.APPROVED if allowed else wire.PROPOSED if proposed else wire.SEEN,
        vbios=shown.vbios,
        inforom=shown.inforom,
        link_width=shown.link_width,
        ecc=shown.ecc,
        unapproved=found.unapproved,
        unapproved_versions=",".join(found.unapproved),
        approvals=found.approvals,
        approvers=approvers,
        approved_by=",".join(approvers),
        approved_at=meta.emit_known(allowed.second_at or allowed.at) if allowed else "",
        proposed_by=proposed.by if proposed else "",
        proposed_at=meta.emit_known(proposed.at) if proposed else "",
    )
