"""Collects and checks what shares GPUs by MPS on this machine: daemons, their folders, compute modes left behind.

Records of the agent say which GPUs it has put under a daemon; what lives is read from the folders' pid files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.cli.doctor.finding import Finding
from fairlead.model.gpu import GPU, ComputeMode
from fairlead.model.ids import GPUUUID
from fairlead.node.sharing import mpsdaemon, mpsrecord

_CLIENTS: Final = "containers that share this GPU find no daemon: their programs cannot use it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One GPU that the agent has put under a daemon."""

    gpu: GPUUUID
    folder: Path
    pid: int | None
    """None: no daemon lives."""
    intruder: str
    """Why its folders are not ours; empty: they are."""


def collect(state: Path) -> tuple[Daemon, ...]:
    """Read the records in a state folder and look at each daemon. Nothing is changed."""
    found = []
    for gpu, record in mpsrecord.read_all(state, sets_aside=False).items():
        folders = mpsdaemon.folders_of(record.root, gpu)
        pid, intruder = mpsdaemon.find_daemon(folders), mpsdaemon.find_intruder(folders)
        found.append(Daemon(gpu=gpu, folder=folders.base, pid=pid, intruder=intruder))
    return tuple(found)


def check(daemons: Iterable[Daemon], gpus: Iterable[GPU], *, is_served: bool) -> Iterator[Finding]:
    """Yield findings; none where nothing is shared by MPS and nothing was left behind.

    Args: is_served: whether a service or agent answers, which keeps the daemons.
    """
    known = {one.gpu for one in daemons}
    for one in daemons:
        yield _judged(one, is_served=is_served)
    for gpu in gpus:
        if gpu.compute_mode is ComputeMode.EXCLUSIVE_PROCESS and gpu.uuid not in known:
            yield Finding(
                check="mps",
                level="warn",
                what=f"GPU {gpu.index} ({gpu.uuid}) has the compute mode EXCLUSIVE_PROCESS, and no MPS daemon of ours",
                why="one process alone can use it; a second one of the same container fails",
                fix=f"unless it was set on purpose: `nvidia-smi -i {gpu.index} -c DEFAULT`",
            )


def _judged(one: Daemon, *, is_served: bool) -> Finding:
    if one.intruder:
        fix = f"remove {one.folder}, or set FAIRLEAD_PLUGIN_MPS_ROOT to another folder"
        what = f"the folder of the MPS daemon of {one.gpu} is not ours: {one.intruder}"
        return Finding(check="mps", level="fail", what=what, why=_CLIENTS, fix=fix)
    if not is_served:
        what = f"{one.gpu} is still under MPS, and no agent runs: " + (
            f"its daemon is process {one.pid}" if one.pid else "its daemon has ended, its compute mode may be left over"
        )
        fix = "start the agent again: it takes the daemon up, or ends it and restores the compute mode"
        return Finding(check="mps", level="warn", what=what, why="it is not supervised", fix=fix)
    if one.pid is None:
        what = f"the MPS control daemon of {one.gpu} does not live"
        fix = f"the agent starts it again and says why it ends; its own log is in {one.folder / 'log'}"
        return Finding(check="mps", level="fail", what=what, why=_CLIENTS, fix=fix)
    return Finding(check="mps", level="ok", what=f"the MPS control daemon of {one.gpu} is process {one.pid}")
