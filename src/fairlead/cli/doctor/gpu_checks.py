"""Checks the GPUs of one machine: the verdict on each, what it reads now, and those that do not answer. Pure.

A GPU that a person must mend before containers can have it is a failure; one that is hot, or waits for a reset at the
next occasion, is a warning. Each finding names the GPU, since when, who has it still, and the commands that mend it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from fairlead import errors
from fairlead.cli.core import output
from fairlead.cli.doctor.finding import Finding
from fairlead.model.gpu import GPU, UnreadableGPU
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import health
from fairlead.plan.lease import neighbour
from fairlead.serve.backend.hardware import GPUListing, GPUView

_WELL: Final = frozenset({"", "Healthy"})
"""Words of a GPU's health that need no finding; empty: not judged yet."""
_WARNED: Final = health.PASSING | {
    "HoldersUnknown",
    "HeldByOtherResource",
    "MPSStarting",
    "MPSHeldOtherwise",
    "MPSDraining",
    neighbour.REASON,
}
"""Reasons that pass, or that another pod's end mends; every other reason is a failure until a person acts."""
_MPS: Final = (
    "MPSStarting",
    "MPSDaemonDied",
    "MPSDaemonSilent",
    "MPSDaemonNotStarted",
    "MPSProgramMissing",
    "MPSFolderForeign",
    "MPSFolderRefused",
)
_RESET: Final = "end what uses it (`fairlead ps` says who), then `nvidia-smi --gpu-reset -i {index}`"
_FIXES: Final[Mapping[str, str]] = {
    neighbour.REASON: "wait until it ends, or end it: `fairlead gpus --kill-foreign {index}`; "
    "`lease.neighbours=share` gives such GPUs away all the same",
    **health.MENDING,
    conflict.REASON: "run the commands named there; until then engines refuse what both files define",
    "CDISpecMissing": "see the findings on `driver` and `cdi`; the agent writes the spec again once they are mended",
    "HoldersUnknown": "see the finding on `kubelet`",
    "HeldByOtherResource": "wait until that pod has ended, or end it",
    **dict.fromkeys(_MPS, "see the finding on `mps`"),
    "MPSHeldOtherwise": "wait until those pods have ended, or end them",
    "MPSDraining": "wait until those pods have ended, or end them",
    "DeviceListTooLarge": "lower `replicas` in the configuration to what is said there",
    "MPSTooManyClients": "lower `replicas` in the configuration: `fairlead agent check FILE` says how far",
}

_LEDGERS: Final[Mapping[str, str]] = {
    "VerifyBaselineMissing": "`fairlead lease baseline list` shows what was seen; if it is what you bought, approve it",
    "VerifySecondApprovalMissing": "another person approves it; on a machine of one person set lease.approvals to 1",
    "Verifying": "wait: `fairlead leases` shows how far it is",
    "Verify": "`fairlead lease report` says what was found; once that is mended `fairlead lease release {uuid}`",
    "Lease": "`fairlead lease history {uuid}` says who kept it back and why; `fairlead lease release {uuid}` ends it",
    "DeviceStillOpen": "end the processes that have it open",
}
"""What mends a GPU that the ledger keeps back, by what its reason begins with, the first that fits."""
_ELSEWHERE: Final = frozenset(
    {conflict.REASON, "CDISpecMissing", "HoldersUnknown", "HeldByOtherResource"}
    | {neighbour.REASON, "MPSHeldOtherwise", "MPSDraining", "MPSTooManyClients", "DeviceListTooLarge", *_MPS}
)
"""Reasons that no reset mends, of real GPUs or simulated ones."""


def check(found: GPUListing) -> Iterator[Finding]:
    """Yield a finding for each GPU that is not as it should be; none where all are."""
    for view in found.gpus:
        if view.health not in _WELL:
            yield _judged(view, simulated=found.is_simulated)
        elif (read := health.find_in_reading(view.gpu)) is not None:
            what = f"{_named(view.gpu)}: {read.reason}: {read.message}"
            yield _finding(read.reason, what, view, simulated=found.is_simulated)
        elif view.gpu.health.ecc_uncorrected:
            count = view.gpu.health.ecc_uncorrected
            what = f"{_named(view.gpu)} has counted {count} uncorrected memory errors since its driver was loaded"
            yield _finding("ECCUncorrected", what, view, simulated=found.is_simulated)
    for lost in found.unreadable:
        yield _unread(lost, simulated=found.is_simulated)


def _named(gpu: GPU) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def _judged(view: GPUView, *, simulated: bool) -> Finding:
    why = ": ".join(part for part in (view.reason, view.message) if part)
    since = f", since {output.age(view.since)}" if view.since else ""
    what = f"{_named(view.gpu)} is {view.health}" + (f": {why}" if why else "") + since
    return _finding(view.reason, what, view, simulated=simulated)


def _finding(reason: str, what: str, view: GPUView, *, simulated: bool) -> Finding:
    held = ", ".join(dict.fromkeys(f"{one.namespace}/{one.container}" for one in view.holders))
    is_given = view.health in _WELL
    why = "it is still given to containers" if is_given else "it is not given to containers; the others work"
    return Finding(
        check="gpus",
        level="warn" if is_given or reason in _WARNED else "fail",
        what=what,
        why=why + (f"; {held} has it" if held else ""),
        fix=_fix(reason, view.gpu.index, str(view.gpu.uuid), simulated=simulated),
    )


def _unread(lost: UnreadableGPU, *, simulated: bool) -> Finding:
    return Finding(
        check="gpus",
        level="fail",
        what=f"GPU {lost.index} ({lost.uuid or lost.pci_bus_id or 'address unknown'}) is {lost.reason}: {lost.message}",
        why="it is not advertised; the others work",
        fix=_fix(lost.reason, lost.index, str(lost.uuid or ""), simulated=simulated),
    )


def find_ledgers_fix(reason: str, uuid: str) -> str:
    """Return what mends a GPU that the ledger keeps back; empty: it is not the ledger that does."""
    gpu = shlex.quote(errors.readable(uuid))  # on a cluster an object says it, and a person may paste the line
    return next((step.format(uuid=gpu) for begin, step in _LEDGERS.items() if reason.startswith(begin)), "")


def _fix(reason: str, index: int, uuid: str, *, simulated: bool) -> str:
    if kept := find_ledgers_fix(reason, uuid):
        return kept
    fix = _FIXES.get(reason, _RESET).format(index=index)
    if reason in _ELSEWHERE:
        return fix
    return f"`fairlead simulate fault recover -g {index}`: it is simulated; a real one: {fix}" if simulated else fix
