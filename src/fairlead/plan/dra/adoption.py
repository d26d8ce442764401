"""Plans how a claim that NVIDIA's DRA driver has prepared becomes one of ours, and says why it cannot. Pure.

A claim is taken over as it is: its devices stay in its containers' hands, and what the other driver set up for them
counts as done. What this driver could not undo is not taken over: a control daemon of MPS is a Deployment of the other
driver, and a GPU that is passed through is bound to another kernel driver. A MIG device is one that exists, whoever
made it: it stays when the claim ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from fairlead import errors
from fairlead.plan.dra import preparation as plans
from fairlead.plan.dra.preparation import Node, Preparation, Stage
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.nvidia.claimcheckpoint import CheckpointedClaim

REFUSED: Final = "ClaimNotAdopted"
_LISTED: Final = 3


def plan(found: CheckpointedClaim, claim: ResourceClaim | None, node: Node, *, boot_id: str, at: float) -> Preparation:
    """Return how a claim of the checkpoint is prepared.

    Args:    claim: as the API server has it; None: that is away, and the checkpoint says what it was.
             boot_id: of the checkpoint; another than the node's: it is set up again.
    Raises:  Conflict (`ClaimNotAdopted`): it cannot be taken over.   FairleadError: as `preparation.plan`.
    """
    _assert_ours(found)
    known = claim or ResourceClaim(
        metadata=ObjectMeta(namespace=found.namespace, name=found.name, uid=found.uid), status=found.status
    )
    allocation = found.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    shares = {(one.device, one.share_id): None for one in results if one.driver == node.driver and one.share_id}
    wanted = plans.plan(known, found.uid, node, at=at, known=shares).preparation
    if served := [one.device for one in wanted.devices if one.share.is_mps]:
        raise _refused(found, f"{served[0]} is shared by MPS, by a control daemon of that driver", "end its pods")
    _assert_same(found, wanted)
    return dataclasses.replace(wanted, stage=Stage.DONE, boot_id=boot_id or node.boot_id)


def _assert_ours(found: CheckpointedClaim) -> None:
    """Refuse what this driver could not undo. Raises: Conflict."""
    if found.daemon:
        why = f"it is shared by MPS, and its control daemon is the Deployment mps-control-daemon-{found.daemon[:100]}"
        raise _refused(found, errors.readable(why), "end its pods, then delete that Deployment")
    if passed := [one.name for one in found.devices if one.is_passthrough]:
        why = f"{errors.readable(passed[0])[:80]} is passed through to a virtual machine"
        raise _refused(found, why, "end its pods while NVIDIA's driver is there, which binds the GPU back")


def _assert_same(found: CheckpointedClaim, wanted: Preparation) -> None:
    """Refuse a claim whose devices are others than they were, as names have minor numbers. Raises: Conflict."""
    named = {one.name: one.uuid for one in found.devices}
    ours = {one.device: one.instance or one.gpu for one in wanted.devices}
    if missing := _listed(name for name in named if name not in ours):
        raise _refused(found, f"it has {missing} prepared, and other devices allocated", "end its pods")
    for name, uuid in ours.items():
        if name in named and named[name] != uuid:
            why = f"{name} was {errors.readable(named[name])[:80] or 'a device without UUID'}, and is {uuid} now"
            raise _refused(found, why, "end its pods: their containers have the device that it was")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(errors.readable(one)[:80] for one in sorted(names)[:_LISTED])


def _refused(found: CheckpointedClaim, why: str, hint: str) -> errors.Conflict:
    return errors.Conflict(f"claim {found.words} is not taken over: {why}", reason=REFUSED, hint=hint)
