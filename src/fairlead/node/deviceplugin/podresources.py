"""Follows the kubelet's PodResources: which container holds which device.

A kubelet sends no event when it hands a device out or takes one back, so it is asked: when something happened that may
have changed its list (`ask`), again soon where the caller expects a change that is not there yet, and at a slow
interval. Requests that come together are one call. A kubelet that does not answer leaves the last list as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Final

import grpc.aio

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model.ids import DeviceID
from fairlead.node.inventory import latest
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubelet import podresources
from fairlead.wire.proto import podresources_pb2 as pb

CALL_S: Final = 5.0
SLOW_S: Final = 30.0
"""Longest time between looks."""
GAP_S: Final = 0.02
"""Shortest time between looks; kubelets answer 100 a second."""
FIRST_RETRY_S, RETRY_S = 0.05, 1.0
_HANGING_S: Final = 60.0
"""A call that takes longer hangs: it has a limit of its own."""


class Client:
    """Asks one kubelet over one kept connection."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel = grpc.aio.insecure_channel(wire.target(socket), options=wire.CHANNEL_OPTIONS)
        self._stub = podresources.Stub(self._channel)

    async def list_holdings(self) -> tuple[Holding, ...]:
        """Return who holds which devices, one entry for each container and resource.

        Raises: Unavailable: no kubelet answers; Insufficient: it is asked too often.
        """
        return parse_holdings(await self._stub.list(timeout_s=CALL_S))

    async def list_allocatable(self) -> dict[str, frozenset[str]]:
        """Return the devices that the kubelet knows, by resource. Raises: as `list_holdings`."""
        answer = await self._stub.allocatable(timeout_s=CALL_S)
        found: dict[str, frozenset[str]] = {}
        for item in answer.devices:
            found[item.resource_name] = found.get(item.resource_name, frozenset()) | frozenset(item.device_ids)
        return found

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()


async def list_holdings(socket: Path) -> tuple[Holding, ...]:
    """Ask a kubelet once, over a connection of its own. Raises: as `Client.list_holdings`."""
    client = Client(socket)
    try:
        return await client.list_holdings()
    finally:
        await client.close()


def parse_holdings(answer: pb.ListPodResourcesResponse) -> tuple[Holding, ...]:
    """Return the devices in a kubelet's list; it may name those of one resource one by one.

    What DRA drivers gave stands under the driver's name, by the device's name and by its CDI names.
    """
    found: dict[tuple[str, str, str, str], list[DeviceID]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for item in container.devices:
                key = (pod.namespace, pod.name, container.name, item.resource_name)
                found.setdefault(key, []).extend(map(DeviceID, item.device_ids))
            for claim in (claim for item in container.dynamic_resources for claim in item.claim_resources):
                key = (pod.namespace, pod.name, container.name, claim.driver_name)
                names = (claim.device_name, *(cdi.name for cdi in claim.cdi_devices))
                found.setdefault(key, []).extend(DeviceID(name) for name in names if name)
    return tuple(
        Holding(namespace=namespace, pod=pod, container=container, resource=resource, ids=tuple(ids))
        for (namespace, pod, container, resource), ids in sorted(found.items())
        if ids
    )


_UNKNOWN: Final = "the kubelet has not said yet which container holds what; its socket is {path}"
LAST_LOOK_S: Final = 2.0
"""How long an ending agent waits for the kubelet to say who holds its devices."""
_MOST_NAMES: Final = 5
STARTING_S: Final = 10.0
"""What a kubelet that begins beside us may take until it answers."""


class Holdings:
    """The kubelet's list, kept up to date."""

    def __init__(self, socket: Path) -> None:
        """Take the socket; nothing is asked before `run`."""
        self.latest: latest.Latest[tuple[Holding, ...] | None] = latest.Latest(None)
        """None: no kubelet has answered yet."""
        self.is_absent: latest.Latest[bool] = latest.Latest(not socket.exists())
        """Whether there is not even a socket of a kubelet to ask."""
        self.socket = socket
        self._retries = Backoff(first_s=FIRST_RETRY_S, last_s=RETRY_S, jitter=0)
        self._settled = asyncio.Event()
        if self.is_absent.value:
            self._settled.set()
        self._asked = asyncio.Event()
        self._due: float | None = None
        self._problem = ""
        self._failing_since: float | None = None
        self._has_answered = False
        """Whether a kubelet answered the connection that stays; others may have heard it before."""
        self._begun = self._kept = 0

    def ask(self, *, after_s: float = 0.0) -> None:
        """Have the list read at the latest after a time; an earlier request stands."""
        at = asyncio.get_running_loop().time() + after_s
        if self._due is None or at < self._due:
            self._due = at
            self._asked.set()

    @property
    def is_awaited(self) -> bool:
        """Whether a kubelet was there from the beginning to say who holds what, and has not said so yet.

        Where none was, devices are offered; they stay so while one starts, or its first pod would be refused.
        """
        return not self._settled.is_set()

    @property
    def problem(self) -> str:
        """Why it is not known who holds what; empty: it is."""
        if self.latest.value is not None:
            return ""
        if self.is_absent.value:
            return f"no kubelet says who holds what: there is no socket {self.socket}"
        return _UNKNOWN.format(path=self.socket)

    @property
    def awaited(self) -> str:
        """Why a kubelet that was here from the beginning has yet to say who holds what; empty: nothing is awaited."""
        return _UNKNOWN.format(path=self.socket) if self.is_awaited else ""

    async def are_held(self, resources: Collection[str]) -> bool:
        """Return whether pods have devices of these resources, or the kubelet that is here never said.

        It is asked once more; where it does not answer in time, its last list counts.
        """
        found = self.latest.value
        if not resources or (found is None and not self.socket.exists()):
            return False
        with contextlib.suppress(errors.FairleadError, TimeoutError):
            async with asyncio.timeout(LAST_LOOK_S):
                found = await list_holdings(self.socket)
        pods = None if found is None else {f"{one.namespace}/{one.pod}" for one in found if one.resource in resources}
        if pods is None or pods:
            names = "unknown" if pods is None else ", ".join(sorted(pods)[:_MOST_NAMES])
            telemetry.log.info("devices are held", pod=names)
        return pods is None or bool(pods)

    async def until_known(self, within_s: float) -> None:
        """Return as soon as the list is known or the kubelet is away, at the latest after a time."""
        if self.is_awaited:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._settled.wait()

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Ask for ever."""
        client = Client(self.socket)
        try:
            while True:
                meter.heartbeat("pod resources", SLOW_S + _HANGING_S)
                wait_s = await self._read(client)
                await asyncio.sleep(GAP_S)
                await self._wait(wait_s)
        finally:
            await client.close()

    async def read(self) -> tuple[Holding, ...]:
        """Ask now, over a connection of its own, and tell who follows `latest`. Raises: as `list_holdings`."""
        return await self._list(list_holdings(self.socket))

    async def _list(self, asking: Coroutine[None, None, tuple[Holding, ...]]) -> tuple[Holding, ...]:
        """Keep what a call answers, unless one that began later has answered already."""
        self._begun = number = self._begun + 1
        found = await asking
        if number > self._kept:
            self._kept = number
            self.latest.set(found)
            self._settled.set()
        return found

    async def _read(self, client: Client) -> float:
        """Ask once; returns the longest time until the next look."""
        self._due = None
        try:
            await self._list(client.list_holdings())
        except errors.FairleadError as error:
            is_absent = not await asyncio.to_thread(self.socket.exists)
            self._report(error)
            self.is_absent.set(is_absent)
            if self.is_absent.value:
                self._settled.set()
            return self._retries.next()
        self._problem, self._failing_since, self._has_answered = "", None, True
        self._retries.reset()
        self.is_absent.set(False)
        return SLOW_S

    def _report(self, error: errors.FairleadError) -> None:
        """Log a failure once; a kubelet that begins beside us does not answer yet, and gets time first."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        is_starting = not self._has_answered and now - self._failing_since < STARTING_S
        if is_starting or error.reason == self._problem:
            return
        self._problem = error.reason
        telemetry.log.warning(
            "kubelet does not say who holds devices", reason=error.reason, error=error.message, path=str(self.socket)
        )

    async def _wait(self, longest_s: float) -> None:
        """Wait until asked, a request is due, or the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + longest_s
        while (until := end if self._due is None else min(end, self._due)) > loop.time():
            self._asked.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._asked.wait()
            except TimeoutError:
                return
