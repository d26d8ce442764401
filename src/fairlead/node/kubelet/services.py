"""Keeps Services on one machine: names in the pods' hosts files, relays of ports, ports of the machine.

Everything is computed again from Services, pods and their processes whenever one of them changes; what is the same is
left alone. A machine without Services does nothing here.
Source: kubernetes pkg/proxy (behaviour); `plan.workload.endpoints` says how names and ports lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.kernel.network import relay
from fairlead.model.container.step import TraceStep
from fairlead.node.kubelet import hostsfile, spec
from fairlead.plan.workload import endpoints
from fairlead.store import retry, tracerecorder
from fairlead.store.port import ChangeKind, Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.service import Service

_SETTLE_S: Final = 0.1
_AGAIN_S: Final = 10.0
"""After how long everything is looked at again: a file that was changed, a port that was taken."""

Key = tuple[int | None, int, int | str]
"""Of a relay: whose namespace it listens in, its port, and where it leads."""


class Services:
    """The Services of this machine."""

    def __init__(
        self, store: Store, *, pods: Callable[[], Sequence[core.Pod]], process: Callable[[str], int | None]
    ) -> None:
        """Take the store, what knows this node's pods, and what gives a running process of one by uid."""
        self._store, self._pods, self._process = store, pods, process
        self._services: dict[str, Service] = {}
        self._news = asyncio.Event()
        self._relays: dict[Key, relay.Relay] = {}
        self._files: dict[int, Path | None] = {}
        """Hosts files by process."""
        self._written: set[int] = set()
        """Processes whose hosts file has Fairlead's lines."""
        self._turn = itertools.count()
        self._refused: dict[Key, str] = {}
        """Why a port is not served, said once until it is."""

    def changed(self) -> None:
        """Look again soon: a pod or a container is another."""
        if self._services or self._relays or self._written:
            self._news.set()

    async def run(self) -> None:
        """Follow Services for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="services")
            tasks.create_task(self._keep(), name="service relays")

    async def _follow(self) -> None:
        while True:
            listing = await self._store.list(Service)
            self._services = {one.metadata.uid: one for one in listing.items}
            self._news.set()
            with contextlib.suppress(errors.Gone):
                async for change in self._store.watch(Service, since=listing.resource_version):
                    if change.kind is ChangeKind.DELETED:
                        self._services.pop(change.object.metadata.uid, None)
                    else:
                        self._services[change.object.metadata.uid] = change.object
                    self._news.set()

    async def _keep(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S if self._services else None):
                        await self._news.wait()
                await asyncio.sleep(_SETTLE_S)  # several changes come together
                self._news.clear()
                await self._look()
        finally:
            for one in self._relays.values():
                await one.close()

    async def _look(self) -> None:
        """Bring names and relays to what Services and pods say now."""
        pods = self._pods()
        processes = {pod.metadata.uid: pid for pod in pods if (pid := self._process(pod.metadata.uid)) is not None}
        await self._name(pods, processes)
        # Nothing outside gVisor can listen in its network.
        entered = [pod for pod in pods if not spec.is_gvisor(pod)]
        await self._relay(self._wanted(entered, processes))
        for service in list(self._services.values()):
            found = tuple(pod.status.pod_ip for pod in endpoints.behind(service, pods))
            if service.status.endpoints != found:
                await self._report(service, found)

    async def _report(self, service: Service, found: tuple[str, ...]) -> None:
        def reported(item: Service) -> Service:
            return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, endpoints=found))

        about = service.metadata
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await retry.change_status(self._store, Service, about.name, reported, namespace=about.namespace)

    async def _name(self, pods: Sequence[core.Pod], processes: Mapping[str, int]) -> None:
        """Write the names of a namespace's Services into the hosts files of its pods."""
        spaces = {one.metadata.namespace for one in self._services.values()}
        living, known = set(processes.values()), self._files
        self._files = {pid: known[pid] for pid in known.keys() & living}
        self._written &= living
        for pod in pods:
            pid, space = processes.get(pod.metadata.uid), pod.metadata.namespace
            if pid is None or pod.spec.host_network or (space not in spaces and pid not in self._written):
                continue
            mine = [one for one in self._services.values() if one.metadata.namespace == space]
            if pid not in self._files:
                self._files[pid] = await asyncio.to_thread(hostsfile.find, pid)
            if (path := self._files[pid]) is None:
                continue
            try:
                await asyncio.to_thread(hostsfile.write, path, endpoints.lines(mine, pods, pod))
            except OSError as error:
                telemetry.log.warning("names of services not written", pod=pod.metadata.uid, error=str(error))
                continue
            (self._written.add if mine else self._written.discard)(pid)

    def _wanted(
        self, pods: Sequence[core.Pod], processes: Mapping[str, int]
    ) -> dict[Key, Callable[[], relay.Where | None]]:
        """Return the relays that there should be, with what says where each leads."""
        found = dict[Key, Callable[[], relay.Where | None]]()
        for pod in pods:
            pid = processes.get(pod.metadata.uid)
            if pid is not None and not pod.spec.host_network:
                for one in endpoints.relays(self._services.values(), pod):
                    where = relay.Where(pid, pod.status.pod_ip, one.target)
                    found[pid, one.port, one.target] = _always(where)
        for service in self._services.values():
            for port in service.spec.ports:
                if port.node_port and (service.spec.type or "ClusterIP") != "ClusterIP":
                    found[None, port.node_port, f"{service.metadata.uid}/{port.port}"] = self._next(
                        service.metadata.uid, port.port
                    )
        return found

    def _next(self, uid: str, number: int) -> Callable[[], relay.Where | None]:
        """Return what chooses the pod of the next connection to a port of the machine: each in turn."""

        def choose() -> relay.Where | None:
            service = self._services.get(uid)
            if service is None:
                return None
            port = next((one for one in service.spec.ports if one.port == number), None)
            found = list[relay.Where]()
            for pod in endpoints.behind(service, self._pods()):
                pid, target = self._process(pod.metadata.uid), endpoints.target(port, pod) if port else None
                if pid is not None and target is not None:
                    # A pod on gVisor is reached from the host alone.
                    found.append(relay.Where(os.getpid() if spec.is_gvisor(pod) else pid, pod.status.pod_ip, target))
            return found[next(self._turn) % len(found)] if found else None

        return choose

    async def _relay(self, wanted: Mapping[Key, Callable[[], relay.Where | None]]) -> None:
        self._refused = {key: why for key, why in self._refused.items() if key in wanted}
        for key in [key for key in self._relays if key not in wanted]:
            await self._relays.pop(key).close()
        for key, choose in wanted.items():
            if key in self._relays:
                continue
            pid, port, _ = key
            made = relay.Relay(choose)
            try:
                await made.listen(port, pid=pid)
            except (errors.FairleadError, OSError) as error:
                await self._tell(key, f"port {port} is not served: {error}")
                continue
            self._refused.pop(key, None)
            self._relays[key] = made

    async def _tell(self, key: Key, message: str) -> None:
        """Say once, in the log and as an event of its Service, why a port is not served."""
        if self._refused.get(key) == message:
            return
        self._refused[key] = message
        telemetry.log.warning("port of a service not served", error=message)
        service = self._services.get(str(key[2]).partition("/")[0])
        if service is not None:
            step = TraceStep(
                layer="kubelet", reason="PortNotServed", message=message, at=time.time(), facts={}, is_warning=True
            )
            await tracerecorder.record(self._store, tracerecorder.reference(service), step)


def _always(where: relay.Where) -> Callable[[], relay.Where | None]:
    return lambda: where
