"""The processes of a machine of claims that a test kills: its driver, and what of a kubelet prepares claims.

Both keep what they must on the disk alone and share one SQLite file as the API server. While the file `away` is there
no call of the API server succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from fairlead import errors
from fairlead.node.dra import claimstatus, driver, sockets, standby
from fairlead.node.dra.preparer import ClaimRef
from fairlead.node.inventory import latest
from fairlead.plan.dra.devicestatus import Progress
from fairlead.store import retry
from fairlead.store.port import EVERYTHING, Selector
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core
from tests.unit.node.dra.claimnode import DRIVER, POOL, ClaimNode
from tests.unit.node.kubelet.dra.claimworld import Node

AWAY, STATE = "away", "kubelet"
_LOOK_S = 0.03


class APIServer(SQLiteStore):
    """Objects that several processes share, with outages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "objects.db")
        self._away = folder / AWAY

    def _assert_there(self) -> None:
        if self._away.exists():
            raise errors.Unavailable("no API server", reason="StoreUnavailable")

    async def get(self, kind: type[Any], name: str, namespace: str = "") -> Any:
        self._assert_there()
        return await super().get(kind, name, namespace)

    async def list(self, kind: type[Any], selector: Selector = EVERYTHING) -> Any:
        self._assert_there()
        return await super().list(kind, selector)

    async def patch(self, before: Any, after: Any, *, is_status: bool = False) -> Any:
        self._assert_there()
        return await super().patch(before, after, is_status=is_status)


class ChurnNode(ClaimNode):
    """A node whose claims are an API server's, and which writes their statuses."""

    statuses: claimstatus.ClaimStatuses

    def tell(self, ref: ClaimRef, progress: Progress | None) -> None:
        self.statuses.tell((ref.namespace, ref.name, ref.uid), progress)


async def drive(folder: Path) -> None:
    """Be the driver of an agent, until killed."""
    mine = asyncio.current_task()
    assert mine is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, mine.cancel)  # as an agent ends in order
    store = APIServer(folder)
    node = ChurnNode(folder / "node", store=store)  # type: ignore[arg-type]  # any store will do
    node.statuses = claimstatus.ClaimStatuses(store, DRIVER, POOL)
    own = sockets.Sockets(folder, DRIVER)
    async with contextlib.AsyncExitStack() as stack:
        with standby.stand_by(own.folder):
            found = await stack.enter_async_context(node.running())
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        served = driver.Driver(found, latest.Latest({}), successor=own.successor)
        tasks.create_task(own.run(served, served))
        tasks.create_task(node.statuses.run())
        while True:
            node.gate.poke()
            await asyncio.sleep(0.05)
            if random.random() < 0.02:
                await found.reap()


async def prepare(folder: Path) -> None:
    """Be a kubelet that starts pods once their claims are prepared, and lets them go once they are unprepared."""
    store = APIServer(folder)
    node = Node(folder, store, call_s=20)  # type: ignore[arg-type]  # any store will do
    node.manager.load("boot-1")
    busy: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.watcher.run())
        while True:
            with contextlib.suppress(errors.FairleadError):
                pods = {one.metadata.uid: one for one in (await store.list(core.Pod)).items}
                for uid in {*pods, *node.manager.holders()} - {uid for uid, task in busy.items() if not task.done()}:
                    busy[uid] = tasks.create_task(_care(node, store, uid, pods.get(uid)))
            await asyncio.sleep(_LOOK_S)


async def _care(node: Node, store: APIServer, uid: str, pod: core.Pod | None) -> None:
    """Bring one pod a step on; what fails is tried again."""
    with contextlib.suppress(errors.FairleadError):
        if pod is not None and pod.metadata.deletion_timestamp is None:
            await node.manager.prepare(pod)
            if pod.status.phase != "Running":
                await retry.change_status(store, core.Pod, pod.metadata.name, running, namespace="team")
            return
        await node.manager.unprepare(uid)
        if pod is not None:
            await store.delete(core.Pod, pod.metadata.name, "team", grace_s=0, uid=uid)


def running(pod: core.Pod) -> core.Pod:
    """Return a pod that runs."""
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Running"))


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run({"drive": drive, "prepare": prepare}[sys.argv[1]](Path(sys.argv[2])))
