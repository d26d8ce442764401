"""Ends neighbours on a person's demand: asked to end first, killed after some seconds.

Each is signalled through a descriptor of its own process, opened before its start time is compared with what the person
saw: a pid that is another process's by now is never hit. Who may be ended is decided by `plan.lease.neighbour`.
Source: pidfd_open(2), pidfd_send_signal(2).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from fairlead.kernel import deviceusers
from fairlead.model.neighbour import Neighbour

PATIENCE_S: Final = 5.0
"""How long a program has to end by itself after SIGTERM."""
_KILLED_S: Final = 5.0
ENDED, KILLED, GONE, LEFT, REFUSED = "ended", "killed", "gone", "left", "refused"


def end(chosen: Iterable[Neighbour], *, root: Path = Path("/"), patience_s: float = PATIENCE_S) -> Mapping[int, str]:
    """End processes and return what became of each, by pid: blocks for as long as it takes.

    `ended`: by SIGTERM; `killed`: by SIGKILL; `gone`: it had ended before, or its pid is another process's by now;
    `left`: it is still there, as one that waits for hardware; `refused`: the kernel does not let this process do so.
    """
    handles: dict[int, int] = {}
    done: dict[int, str] = {}
    try:
        for one in chosen:
            try:
                handle = os.pidfd_open(one.pid)
            except ProcessLookupError:
                done[one.pid] = GONE
                continue
            except OSError:
                done[one.pid] = REFUSED
                continue
            now = deviceusers.read(one.pid, root=root)
            if now is not None and _is_of_kernel(root, one.pid):
                os.close(handle)
                done[one.pid] = REFUSED
                continue
            if now is None or now.started != one.started or _send(handle, signal.SIGTERM) == GONE:
                os.close(handle)
                done[one.pid] = GONE
                continue
            handles[one.pid] = handle
        left = _wait(handles, patience_s)
        done |= dict.fromkeys(handles.keys() - left, ENDED)
        refused = {pid for pid in left if _send(handles[pid], signal.SIGKILL) == REFUSED}
        still = _wait({pid: handles[pid] for pid in left}, _KILLED_S if left else 0.0)
        done |= {pid: (REFUSED if pid in refused else LEFT) if pid in still else KILLED for pid in left}
    finally:
        for handle in handles.values():
            os.close(handle)
    return done


def _is_of_kernel(root: Path, pid: int) -> bool:
    """Return whether a pid is the kernel's own thread: it has no program."""
    try:
        os.readlink(root / "proc" / str(pid) / "exe")  # noqa: PTH115  (a name, not a path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _send(handle: int, number: signal.Signals) -> str:
    """Signal a process; returns what keeps it from it, empty: nothing."""
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return GONE
    except OSError:
        return REFUSED
    return ""


def _wait(handles: Mapping[int, int], longest_s: float) -> set[int]:
    """Wait for processes to end; returns the pids of those that have not."""
    poll, pids = select.poll(), {handle: pid for pid, handle in handles.items()}
    for handle in pids:
        poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + longest_s
    while pids:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            break
        for handle, _ in ready:
            with contextlib.suppress(KeyError):
                poll.unregister(handle)
            pids.pop(handle, None)
    return set(pids.values())
