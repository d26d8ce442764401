"""Neighbours are asked to end, then killed; never a process that got the pid."""

from __future__ import annotations

import dataclasses
import sys

from fairlead.kernel import deviceusers
from fairlead.model.neighbour import Neighbour
from fairlead.node.lease.neighbours import ending
from tests import outsider

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


def seen(pid: int) -> Neighbour:
    found = deviceusers.read(pid)
    assert found is not None
    return Neighbour(pid=pid, name=found.name, started=found.started)


def test_a_program_ends_by_sigterm() -> None:
    with outsider.running("sleep", "60") as one:
        assert ending.end([seen(one.pid)]) == {one.pid: ending.ENDED}
        assert not one.is_alive


def test_one_that_ignores_it_is_killed() -> None:
    with outsider.running(sys.executable, "-c", DEAF) as one:
        status = f"/proc/{one.pid}/status"

        def is_deaf() -> bool:
            with open(status, encoding="utf-8") as file:  # noqa: PTH123
                masks = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("SigIgn"))
            return bool(int(masks["SigIgn"], 16) & 1 << 14)

        outsider.until(is_deaf)
        assert ending.end([seen(one.pid)], patience_s=0.1) == {one.pid: ending.KILLED}
        assert not one.is_alive


def test_a_pid_of_another_process_is_not_hit() -> None:
    with outsider.running("sleep", "60") as one:
        earlier = dataclasses.replace(seen(one.pid), started="1")
        assert ending.end([earlier]) == {one.pid: ending.GONE}
        assert one.is_alive


def test_one_that_has_ended_is_gone_and_the_kernels_own_is_refused() -> None:
    with outsider.running("sleep", "60") as one:
        known = seen(one.pid)
    assert ending.end([known]) == {one.pid: ending.GONE}
    assert ending.end([]) == {}
