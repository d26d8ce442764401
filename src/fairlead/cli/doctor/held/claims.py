"""Collects and checks what ResourceClaims have on this node: notes beside the ledger, the driver's sockets, and others.

The ledger's file and the kubelet's folders are read beside the agent; nothing is changed. Another DRA driver of the
same name is named: a kubelet asks whichever of the two it heard of last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.cli.doctor.finding import Finding
from fairlead.kernel import socketpeer
from fairlead.node.dra import journal
from fairlead.node.lease import ledgerfile
from fairlead.plan.dra import claimspec
from fairlead.plan.dra.offered import DRIVER
from fairlead.plan.dra.preparation import Preparation, Stage
from fairlead.wire.kubelet import pluginregistration as registration
from fairlead.wire.nvidia import claimcheckpoint
from fairlead.wire.text import typedjson

_LARGEST: Final = 16 << 20
_MANY: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    is_wanted: bool = False
    """Whether the settings give GPUs away by claims."""
    prepared: tuple[Preparation, ...] = ()
    unreadable: tuple[str, ...] = ()
    """UIDs of claims whose note this version does not read."""
    unshown: tuple[str, ...] = ()
    """Prepared claims whose CDI file is gone, by name."""
    damaged: tuple[Path, ...] = ()
    """Notes that were set aside."""
    sockets: tuple[tuple[Path, bool], ...] = ()
    """Registration sockets of the driver's name, each with whether somebody answers."""
    foreign: tuple[str, ...] = ()
    """Claims that another driver of the name has prepared, by name, as its checkpoint says."""
    foreign_path: str = ""
    """That checkpoint; empty: there is none."""
    foreign_problem: str = ""
    """Why it cannot be read; empty: it can."""
    set_aside: tuple[Path, ...] = ()
    """Checkpoints of that driver that were not understood."""


def collect(ledger_folder: Path, kubelet_root: Path, cdi_folder: Path, *, is_wanted: bool) -> Facts:
    """Read them. Args: ledger_folder: of the ledger.   kubelet_root: of the kubelet.   cdi_folder: of our specs."""
    prepared: list[Preparation] = []
    unreadable: list[str] = []
    path = ledger_folder / ledgerfile.NAME
    try:
        notes = ledgerfile.read_notes(path) if path.exists() else {}
    except errors.FairleadError:
        notes = {}  # the ledger's own check says it
    for uid, document in notes.items():
        try:
            prepared.append(typedjson.decode(document, type=Preparation))
        except msgspec.MsgspecError:
            unreadable.append(uid)
    registry = kubelet_root / registration.FOLDER
    named = sorted(registry.glob(f"{DRIVER}*.sock")) if registry.is_dir() else []
    checkpoint = kubelet_root / registration.PLUGINS / DRIVER / claimcheckpoint.NAME
    foreign, problem = _foreign_claims(checkpoint)
    return Facts(
        is_wanted=is_wanted,
        prepared=tuple(prepared),
        unreadable=tuple(unreadable),
        unshown=tuple(
            one.words
            for one in prepared
            if one.stage is Stage.DONE and not (cdi_folder / claimspec.file_name(one.uid)).exists()
        ),
        damaged=tuple(sorted((ledger_folder / journal.ASIDE).glob("*.json"))),
        sockets=tuple((one, socketpeer.find_server(one) is not None) for one in named),
        foreign=foreign,
        foreign_path=str(checkpoint) if checkpoint.exists() else "",
        foreign_problem=problem,
        set_aside=tuple(
            sorted(
                path for word in ("damaged", "newer") for path in checkpoint.parent.glob(f"{checkpoint.name}.{word}-*")
            )
        ),
    )


def _foreign_claims(path: Path) -> tuple[tuple[str, ...], str]:
    """Return the claims in a checkpoint of NVIDIA's driver, and why it cannot be read; empty: it can, or is gone."""
    try:
        data = files.read_regular(path, limit_bytes=_LARGEST)
        found = claimcheckpoint.read(data).claims if data is not None else ()
    except errors.FairleadError as error:
        return (), error.message
    return tuple(sorted(one.words for one in found)), ""


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings; none where claims have nothing here and are to get nothing."""
    for path in seen.damaged:
        yield Finding(
            check="claims",
            level="warn",
            what=f"the note of a prepared claim was damaged, and set aside as {path}",
            why="what was set up for it, a MIG device say, may stand without an owner",
            fix="`fairlead mig list` shows what stands; remove the file once it is no longer needed",
        )
    for path in seen.set_aside:
        yield Finding(
            check="claims",
            level="warn",
            what=f"a checkpoint of NVIDIA's DRA driver was not understood, and set aside as {path}",
            why="its claims were not taken over: their pods keep their GPUs until they end",
            fix="end the pods of that driver's claims (`kubectl get resourceclaims -A`), then remove the file",
        )
    for uid in seen.unreadable:
        yield Finding(
            check="claims",
            level="warn",
            what=f"claim {uid} was prepared by another version of fairlead, whose note this one does not read",
            why="it is neither prepared anew nor taken back",
            fix="run that version until its pod has ended",
        )
    begun = [one.words for one in seen.prepared if one.stage is Stage.BEGUN]
    if begun:
        yield Finding(
            check="claims",
            level="warn",
            what=f"preparing was begun and not finished: {_listed(begun)}",
            why="its pod waits in ContainerCreating",
            fix="the kubelet tries again; `kubectl describe pod` has the reason of the last try",
        )
    if seen.unshown:
        yield Finding(
            check="claims",
            level="fail",
            what=f"the CDI file of prepared claims is gone: {_listed(seen.unshown)}",
            why="a container of theirs that ends cannot be started again",
            fix="restart the agent: it writes them again",
        )
    yield from _check_sockets(seen)
    if seen.prepared:
        yield Finding(check="claims", level="ok", what=f"claims prepared: {len(seen.prepared)}")


def _check_sockets(seen: Facts) -> Iterator[Finding]:
    answering = [path for path, answers in seen.sockets if answers]
    if seen.is_wanted and not answering:
        yield Finding(
            check="claims",
            level="fail",
            what=f"claims are to get GPUs, and no driver {DRIVER} answers in the kubelet's plugins_registry",
            why="pods with claims stay in ContainerCreating",
            fix="look into the agent's log for role=claims; it needs the kubelet's `plugins` and `plugins_registry`",
        )
    if (seen.is_wanted or seen.prepared) and (seen.foreign_path or len(answering) > 1):
        what = (
            f"another driver {DRIVER} has been here: {seen.foreign_path} {_left(seen)}"
            if seen.foreign_path
            else f"{len(answering)} drivers {DRIVER} answer: {_listed([path.name for path in answering])}"
        )
        yield Finding(
            check="claims",
            level="warn",
            what=what,
            why="claims are taken over once that driver is gone; events `ClaimNotAdopted` say why one is not"
            if seen.foreign_path
            else "a kubelet asks the one that it heard of last, and each gives away the same GPUs",
            fix="remove the other driver from this node; end the pods of claims that are not taken over",
        )


def _left(seen: Facts) -> str:
    if seen.foreign_problem:
        return f"cannot be read ({seen.foreign_problem})"
    return f"has claims prepared: {_listed(seen.foreign)}" if seen.foreign else "has no claims prepared"


def _listed(words: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(words) - _MANY} more" if len(words) > _MANY else ""
    return ", ".join(words[:_MANY]) + more
