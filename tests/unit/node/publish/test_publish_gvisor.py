"""The label by which pods for gVisor find the nodes whose driver it knows, asked of a program of the test's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.node.inventory import latest, nodeobject
from fairlead.node.publish import objects
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import EVERYTHING
from fairlead.wire.kubernetes import core
from tests.unit.node.publish.test_publish import NODE, node, snapshot

_RUNSC = "#!/bin/sh\ncase $1 in --version) echo runsc version 1 ;; *) echo {driver} ;; esac\n"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (_RUNSC.format(driver="550.163.01"), "true"),
        (_RUNSC.format(driver="535.129.03"), "false"),
        ("#!/bin/sh\nexit 1\n", "false"),
        ("", None),
    ],
)
async def test_a_node_says_whether_its_gvisor_knows_its_driver(tmp_path: Path, text: str, label: str | None) -> None:
    program = tmp_path / "runsc"
    program.write_text(text)
    program.chmod(0o755)
    store = MemoryStore()
    await store.create(node())
    known = nodeobject.NodeObject(NODE, store)
    labelling = objects.Labelling(gvisor=str(program) if text else "")
    publisher = objects.Publisher(known, store, snapshots=latest.Latest(snapshot()), labelling=labelling)

    since = (await store.list(core.Node)).resource_version

    async def labels() -> dict[str, str]:
        async for change in store.watch(core.Node, EVERYTHING, since=since):
            if "nvidia.com/gpu.product" in change.object.metadata.labels:
                return dict(change.object.metadata.labels)
        raise AssertionError("the watch ended")

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(publisher.run()), tasks.create_task(known.run())]
        async with asyncio.timeout(20):
            found = await labels()
        for task in running:
            task.cancel()
    assert found.get("fairlead.dev/gvisor") == label
