"""The judgement of the node's engine: reported when it changes, whatever changed it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from fairlead import errors
from fairlead.node import enginegate
from fairlead.node.inventory import latest
from fairlead.plan.gpu.allocation import answer


async def test_another_way_of_answering_that_the_engine_would_ignore_is_said_too(tmp_path: Path) -> None:
    told: list[str] = []
    ways = [answer.AllocateOptions(strategies=frozenset({answer.Strategy.ENVVAR}))]

    def judged(_engines: tuple[str, ...], problem: errors.Unavailable | None) -> None:
        told.append(problem.reason if problem else "")

    gate = enginegate.EngineGate("", root=tmp_path, options=lambda: ways[-1], judged=judged)
    node, seen = latest.Latest("containerd://1.6.36"), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(gate.run(node, lambda: seen.set() if gate.problem is None else None))
        async with asyncio.timeout(5):
            await seen.wait()
        assert (gate.problem, told) == (None, [])
        with capture_logs() as logged:
            ways.append(answer.DEFAULT)
            gate.judge()
            gate.judge()
        assert told == ["CDIUnsupported"]
        assert [line["event"] for line in logged] == ["nothing is allocated"]
        ways.pop()
        gate.judge()
        assert told == ["CDIUnsupported", ""]
        task.cancel()
