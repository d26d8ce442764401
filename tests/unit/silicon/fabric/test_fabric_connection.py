"""One thread a connection: what hangs is left behind, what waits is taken back, what broke is made anew."""

from __future__ import annotations

import threading
import time

import pytest

from fairlead import errors
from fairlead.silicon.fabric import connection
from fairlead.silicon.fabric.port import FabricManager
from tests.unit.silicon.fabric.conftest import Bench


def _listed(manager: FabricManager) -> int:
    return len(manager.list_partitions())


def test_a_manager_that_is_slow_blocks_nobody_beyond_the_limit(bench: Bench) -> None:
    manager = bench.start()
    made = connection.Connection("fm", bench.connect)
    assert made.run_here(_listed, timeout_s=5) == 15
    manager.faults["slow"] = "0.3"
    began = time.monotonic()
    with pytest.raises(errors.Unavailable) as caught:
        made.run_here(_listed, timeout_s=0.05)
    with pytest.raises(errors.Unavailable):
        made.run_here(_listed, timeout_s=5)  # refused at once: the first is inside the library still
    assert time.monotonic() - began < 0.25
    assert caught.value.reason == connection.HANGS


def test_after_the_hang_the_next_call_connects_anew() -> None:
    gate, made = threading.Event(), list[str]()

    class Slow:
        def list_partitions(self) -> tuple[()]:
            gate.wait(5)
            return ()

        def close(self) -> None:
            made.append("closed")

    def connect() -> FabricManager:
        made.append("connected")
        return Slow()  # type: ignore[return-value]  # what is called of it

    line = connection.Connection("fm", connect)
    with pytest.raises(errors.Unavailable):
        line.run_here(_listed, timeout_s=0.02)
    gate.set()
    while "closed" not in made:
        time.sleep(0.001)
    assert line.run_here(_listed, timeout_s=5) == 0
    assert made == ["connected", "closed", "connected"]


def test_a_call_that_nobody_waits_for_any_more_is_never_done() -> None:
    gate, done = threading.Event(), list[str]()
    line = connection.Connection("fm", lambda: None)  # type: ignore[arg-type,return-value]  # no call looks at it
    first = line.submit(lambda _: gate.wait(5))
    second = line.submit(lambda _: done.append("activated"))
    line.give_up(second)
    third = line.submit(lambda _: done.append("third"))
    gate.set()
    third.result(5)
    assert first.done()
    assert done == ["third"]


def test_a_broken_connection_is_made_anew_with_the_next_call(bench: Bench) -> None:
    manager = bench.start()
    made = connection.Connection("fm", bench.connect)
    assert made.run_here(_listed, timeout_s=5) == 15
    manager.stop()
    with pytest.raises(errors.Unavailable, match="cannot be reached"):
        made.run_here(_listed, timeout_s=5)
    bench.start()
    assert made.run_here(_listed, timeout_s=5) == 15


def test_a_closed_connection_takes_no_call_and_waits_for_none() -> None:
    line = connection.Connection("fm", lambda: None)  # type: ignore[arg-type,return-value]  # no call looks at it
    assert line.submit(lambda _: 1).result(5) == 1
    line.close()
    with pytest.raises(errors.Unavailable, match="was closed"):
        line.submit(lambda _: 2)
