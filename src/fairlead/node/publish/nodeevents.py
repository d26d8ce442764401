"""Writes trace steps about the node as Events, in order, without keeping anyone waiting.

A step that the store cannot take now is tried again until it can, with growing waits and under one name, so that an
API server that is away for minutes loses nothing and gets nothing twice. Only when so many wait that something must be
wrong are the oldest let go, and the log says so. Events name the Node by its uid as well, as `kubectl describe node`
looks for them; until there is a Node they go by name alone.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.model import replica
from fairlead.model.container.step import TraceStep
from fairlead.model.gpu import Inventory
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.node.inventory import health
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import clash
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import State
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubernetes import core

LIMIT: Final = 1000
"""Steps that may wait for the store."""
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 30.0
_HANGING_S: Final = 300.0
"""One try and its wait take longer than this only where the store hangs: its calls have their own, shorter limits."""


class NodeEvents:
    """What the agent reports to the store: steps about the node, in order, without keeping anyone waiting."""

    def __init__(self, node: str, store: Store | None, *, chance: Callable[[], float] = random.random) -> None:
        """Take whose steps they are and where they go (None: nowhere), and what jitters waits (0 to 1)."""
        self._node = core.ObjectReference(api_version="v1", kind="Node", name=node)
        self._store = store
        self._chance = chance
        self._steps: deque[tuple[str, TraceStep]] = deque()
        """With the name that each event will have: a step that is tried again is the same event."""
        self._more = asyncio.Event()
        self._found: dict[str, object] = {}
        self._sockets: dict[str, Path] = {}
        self._ids: dict[str, tuple[str, ...]] = {}

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Record for ever; a run that ended in the middle of a step is followed by one that begins with it."""
        while True:
            if not self._steps:
                self._more.clear()
                meter.heartbeat("events", None)
                await self._more.wait()
            first = self._steps[0]
            await self._keep(*first, meter)
            if self._steps and self._steps[0] is first:  # else it was let go meanwhile
                self._steps.popleft()

    async def _keep(self, name: str, step: TraceStep, meter: telemetry.Meter) -> None:
        if self._store is None:
            return
        waits = Backoff(first_s=_FIRST_WAIT_S, last_s=_LAST_WAIT_S, chance=self._chance)
        meter.heartbeat("events", _HANGING_S)
        await self._learn_uid(self._store)
        while not await tracerecorder.record(self._store, self._node, step, host=self._node.name, once=name):
            await asyncio.sleep(waits.next())
            meter.heartbeat("events", _HANGING_S)
            await self._learn_uid(self._store)

    async def _learn_uid(self, store: Store) -> None:
        """Look the Node up until there is one; a Node made anew keeps the old uid in our events, and its name."""
        if self._node.uid:
            return
        try:
            self._node = tracerecorder.reference(await store.get(core.Node, self._node.name))
        except errors.FairleadError as error:
            telemetry.log.debug("node not found yet", reason=error.reason, error=error.message)

    def inventory_seen(self, found: Inventory) -> None:
        """Note what the silicon is, when it differs from last time."""
        facts = describe(found)
        if facts == self._found:
            return
        self._found = facts
        drivers = ", ".join(f"{driver.vendor.value} driver {driver.version}" for driver in found.drivers) or "no driver"
        models = ", ".join(f"{number} x {name}" for name, number in _models(found).items()) or "no GPU"
        lost = f", {len(found.unreadable)} not answering" if found.unreadable else ""
        simulated = " (simulated)" if found.is_simulated else ""
        self._note("silicon", "GPUsFound", f"{models}{lost}; {drivers}{simulated}", facts)

    def registered(self, plugin: deviceplugin.Plugin, path: Path) -> None:
        """Note that a kubelet took the plugin in, and with which devices."""
        self._sockets[plugin.resource] = path
        self._ids.pop(plugin.resource, None)
        self.advertised(plugin)

    def advertised(self, plugin: deviceplugin.Plugin) -> None:
        """Note the devices that a kubelet gets, when they are not the same as last time."""
        path, ids = self._sockets.get(plugin.resource), tuple(device.id for device in plugin.devices)
        if path is None or ids == self._ids.get(plugin.resource):
            return
        healthy = {str(device.id): device.is_healthy for device in plugin.devices}
        self._note_list(plugin.resource, healthy, path)

    def plugin_listed(self, resource: str, devices: Mapping[str, bool], path: Path) -> None:
        """Note which plugin serves a resource, when another one does or it lists other devices; the kubelet's view.

        Our own agent notes its registration itself, so ours is noted only after another's.
        """
        if resource not in self._sockets and path.name.startswith(deviceplugin.SOCKET_START):
            return
        if (path, tuple(devices)) != (self._sockets.get(resource), self._ids.get(resource)):
            self._sockets[resource] = path
            self._note_list(resource, devices, path)

    def _note_list(self, resource: str, devices: Mapping[str, bool], path: Path) -> None:
        ids = self._ids[resource] = tuple(devices)
        healthy = sum(devices.values())
        facts: dict[str, object] = {
            "resource": resource,
            "count": len(ids),
            "healthy": healthy,
            "ids": list(ids),
            "socket": str(path),
            "kubelet": str(path.with_name(wire.KUBELET_SOCKET)),
        }
        message = f"{len(ids)} {resource} advertised, {healthy} healthy; registered with the kubelet"
        self._note("deviceplugin", "DevicesAdvertised", message, facts)

    def health_changed(self, change: health.Change) -> None:
        """Note that a GPU is offered again, or no more."""
        facts: dict[str, object] = {"gpu": change.uuid, "reason": change.reason}
        if change.is_healthy:
            self._note("deviceplugin", "DeviceHealthy", f"{change.uuid} is offered again after {change.reason}", facts)
        else:
            message = f"{change.uuid} is not offered: {change.message or change.reason}"
            self._note("deviceplugin", "DeviceUnhealthy", message, facts, is_warning=True)

    def mig_configured(self, name: str, state: str, text: str) -> None:
        """Note how the chosen MIG configuration is."""
        facts: dict[str, object] = {"config": name, "state": state}
        words = {"pending": "is being applied", "success": "is in force", "failed": f"is not in force: {text}"}
        reasons = {"pending": "MIGConfigPending", "success": "MIGConfigApplied", "failed": "MIGConfigFailed"}
        message = f"MIG configuration {name} {words[state]}"
        self._note("deviceplugin", reasons[state], message, facts, is_warning=state == "failed")

    def mps_changed(self, gpu: str, reason: str, text: str) -> None:
        """Note that a GPU's MPS daemon is ready, or why it is not."""
        message = f"{gpu}: {text}"
        is_waiting = reason.endswith(("Starting", "Draining"))
        facts: dict[str, object] = {"gpu": gpu}
        self._note("deviceplugin", reason or "MPSReady", message, facts, is_warning=bool(reason) and not is_waiting)

    def claim_said(self, claim: str, reason: str, text: str) -> None:
        """Note what a person should know of a ResourceClaim. Args: claim: `namespace/name`."""
        self._note("deviceplugin", reason, f"claim {claim}: {text}", {"claim": claim}, is_warning=True)

    def gpu_kept_back(self, one: Change) -> None:
        """Note that a GPU went into quarantine, or out of it; what else the ledger does is in its own history."""
        was, now = one.before.state is State.QUARANTINED, one.after.state is State.QUARANTINED
        if was is now:
            return
        facts: dict[str, object] = {"gpu": one.after.key, "lease": one.after.epoch, "reason": one.after.reason}
        who = f" by {one.facts.by}" if one.facts.by else ""
        if now:
            why = one.after.message or one.after.reason or "nobody said why"
            message = f"{one.after.key} is in quarantine{who}: {why}"
            self._note("deviceplugin", "GPUQuarantined", message, facts, is_warning=True)
        else:
            message = f"{one.after.key} was released from quarantine{who}; it is {one.after.state.value}"
            self._note("deviceplugin", "GPUReleased", message, facts)

    def conflicts_found(self, found: tuple[conflict.Conflict, ...]) -> None:
        """Note which of our devices another spec file defines too; none: no file does any more."""
        if not found:
            self._note("cdi", "CDIConflictEnded", "every device is defined by one CDI spec again", {})
        for one in found:
            facts: dict[str, object] = {"spec": one.path, "other": one.other, "count": len(one.devices)}
            message = f"{one.message}; {one.remedy}"
            self._note("cdi", conflict.REASON, message, facts, is_warning=True)

    def held_elsewhere(self, found: tuple[clash.Clash, ...]) -> None:
        """Note which of our devices are kept back because another resource has them; none: no other has any more."""
        if not found:
            self._note("deviceplugin", f"{clash.REASON}Ended", "no other resource has a GPU of ours any more", {})
        # Replicas of one device are kept back together, for one reason.
        devices = {(replica.origin(one.device), one.resource, one.holding): one for one in found}
        for (device, _, held), one in devices.items():
            facts: dict[str, object] = {
                "gpu": device,
                "resource": one.resource,
                "other": held.resource,
                "pod": f"{held.namespace}/{held.pod}",
            }
            message = f"{device} is not offered: {one.message}"
            self._note("deviceplugin", clash.REASON, message, facts, is_warning=True)

    def config_applied(self, name: str) -> None:
        """Note which configuration is in force."""
        message = f"configuration {name} is in force" if name else "no configuration file is in force"
        self._note("deviceplugin", "ConfigApplied", message, {"config": name})

    def config_refused(self, problem: str) -> None:
        """Note why the configuration that was asked for is not in force."""
        self._note("deviceplugin", "ConfigRefused", f"configuration refused: {problem}", {}, is_warning=True)

    def engine_judged(self, engines: tuple[str, ...], problem: errors.FairleadError | None) -> None:
        """Note that the node's engine would start containers without their devices, or no longer would."""
        runtime = ", ".join(engines)
        facts: dict[str, object] = {"runtime": runtime}
        if problem is None:
            self._note(
                "deviceplugin", "EngineAccepted", f"{runtime} injects CDI devices: they are offered again", facts
            )
        else:
            message = f"no device is offered: {errors.sentence(problem)}"
            self._note("deviceplugin", problem.reason, message, facts, is_warning=True)

    def strategy_judged(self, problem: errors.FairleadError) -> None:
        """Note that devices are handed over in a way that no engine here is seen to read."""
        self._note("deviceplugin", problem.reason, errors.sentence(problem), {}, is_warning=True)

    def _note(
        self, layer: str, reason: str, message: str, facts: dict[str, object], *, is_warning: bool = False
    ) -> None:
        if len(self._steps) >= LIMIT:
            _, lost = self._steps.popleft()
            telemetry.log.warning("step not recorded", reason="TooManySteps", error=lost.message)
        step = TraceStep(
            layer=layer, reason=reason, message=message, at=time.time(), facts=facts, is_warning=is_warning
        )
        self._steps.append((uuid.uuid4().hex, step))
        self._more.set()


def _models(found: Inventory) -> dict[str, int]:
    return dict(Counter(gpu.name for gpu in found.gpus))


def describe(found: Inventory) -> dict[str, object]:
    """Return the silicon as facts of a step: drivers, CUDA, models, who does not answer, simulated or not."""
    cuda = {
        driver.vendor.value: ".".join(map(str, driver.cuda_version)) for driver in found.drivers if driver.cuda_version
    }
    return {
        "drivers": {driver.vendor.value: driver.version for driver in found.drivers},
        "cuda": cuda,
        "count": len(found.gpus),
        "models": _models(found),
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci_bus_id} for gpu in found.gpus],
        "unreadable": [{"index": gone.index, "reason": gone.reason} for gone in found.unreadable],
        "simulated": found.is_simulated,
    }
