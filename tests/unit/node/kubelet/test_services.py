"""Services of one machine over a memory store: endpoints in the status, ports of the machine, and what is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import msgspec
import pytest

from fairlead.node.kubelet.services import Services
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.service import Service

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="entering a namespace needs root")


def _pod(port: int) -> core.Pod:
    document = {
        "metadata": {"name": "a", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main"}], "hostNetwork": True},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    assert port
    return msgspec.convert(document, core.Pod)


def _service(port: int, node_port: int) -> Service:
    ports = [{"port": 80, "targetPort": port, "nodePort": node_port}]
    spec = {"type": "NodePort", "selector": {"app": "web"}, "ports": ports}
    return msgspec.convert({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}, Service)


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@needs_root
async def test_a_port_of_the_machine_leads_to_the_pod_and_its_address_is_in_the_status() -> None:
    async def hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    store, number = MemoryStore(), _free()
    async with await asyncio.start_server(hello, "127.0.0.1", 0) as server, asyncio.TaskGroup() as tasks:
        port = server.sockets[0].getsockname()[1]
        kept = Services(store, pods=lambda: (_pod(port),), process=lambda _uid: os.getpid())
        task = tasks.create_task(kept.run())
        await store.create(_service(port, number))
        found = b""
        async with asyncio.timeout(20):
            while not found:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", number)
                    found = await reader.read()
                    writer.close()
                await asyncio.sleep(0.02)
        stored = await store.get(Service, "web", "default")
        task.cancel()
    assert found == b"hello"
    assert stored.status.endpoints == ("127.0.0.1",)


async def test_a_port_that_another_program_has_is_an_event_of_its_service_once() -> None:
    store = MemoryStore()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with asyncio.TaskGroup() as tasks:
            kept = Services(store, pods=tuple, process=lambda _uid: None)
            task = tasks.create_task(kept.run())
            await store.create(_service(80, taken.getsockname()[1]))
            events: list[core.Event] = []

            async def look() -> None:
                events[:] = (await store.list(core.Event)).items

            async with asyncio.timeout(20):
                while not events:
                    await look()
                    await asyncio.sleep(0.02)
            kept.changed()
            await asyncio.sleep(0.3)
            await look()
            task.cancel()
    assert [(one.reason, one.involved_object.name) for one in events] == [("PortNotServed", "web")]
    assert "cannot be listened on" in events[0].message
