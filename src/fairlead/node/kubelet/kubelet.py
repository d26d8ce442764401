"""Plays the kubelet on one machine, and only its part.

It serves `Registration`, runs the device manager, follows the pods bound to its node and brings each, one worker a pod,
to what `plan.pod.life.podsync` says. What the engine has is listed once and kept current by the engine's events, with a
full list at a slow interval, so that a container removed behind our back is noticed either way. The claims of pods are
prepared by the DRA drivers that register with it (`node.kubelet.dra`). It knows nothing of GPUs and
shares nothing with the rest but the store and the plugins' sockets; it may be killed at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Set
from types import UnionType
from typing import Final, assert_never

import msgspec

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerPhase, ContainerState, Engine, IdentifiedImages
from fairlead.kernel import cgrouplimits
from fairlead.kernel.network import address
from fairlead.node.kubelet import attachment, fault, nodestatus, resizing, services, spec, volumes
from fairlead.node.kubelet.containercache import ContainerCache
from fairlead.node.kubelet.devices import checkpoint, endpoint, podresources, registration
from fairlead.node.kubelet.devices.devicemanager import Choice, DeviceManager, device_requests
from fairlead.node.kubelet.dra import parts as dra
from fairlead.node.kubelet.dra.podclaims import PodClaims
from fairlead.node.kubelet.probing import prober
from fairlead.node.kubelet.runtime import Runtime, RuntimeSettings
from fairlead.node.publish import nodeevents
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.pod import podstate
from fairlead.plan.pod.life import podsync, restart
from fairlead.settings import Settings
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core, names
from fairlead.workqueue import WorkQueue

_NODE_KEY: Final = "node"
_PLUGIN_WAIT_S: Final = 30.0
"""How long a pod waits for a plugin that may be being started, or started again."""
_PLUGIN_AWAY: Final = frozenset({"Unavailable", "Cancelled", endpoint.UNREACHABLE})
"""Reasons of a call that reached no plugin."""
_UNWELL: Final = frozenset({"GPUNotVerified", "DeviceUnhealthy", "LedgerNotOpen", "LedgerSlow"})
"""Reasons of Fairlead's plugin that end by themselves: a device still to be verified, a disk that is slow."""
_ORPHAN_WAIT_S: Final = 0.2
_NAME_TAKEN_S: Final = 10.0
_NOT_ADMITTED: Final = "UnexpectedAdmissionError"


class Kubelet:
    """One node."""

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        images: IdentifiedImages,
        settings: Settings,
        node: str,
        find_cgroup: resizing.Find = cgrouplimits.of_container,
    ) -> None:
        """Take the ports and the node's name; `settings.state.folder` keeps the checkpoint."""
        self._store, self._engine, self._images = store, engine, images
        self._settings, self._node = settings, node
        self._folder = settings.state.folder / "kubelet"
        self._pods: dict[str, core.Pod] = {}
        """Pods of this node by uid, as the store's watch reports them; the store is the authority."""
        self._containers = ContainerCache()
        self._kills: dict[str, tuple[float, asyncio.Timeout]] = {}
        """By pod: the grace of the stop that its worker waits for, and that wait."""
        self._blocked: dict[str, dict[str, podsync.Blocked]] = {}
        """By pod and container: what kept it from starting."""
        self._unanswered: dict[str, float] = {}
        """By pod: monotonic time of the first call for it that reached no plugin."""
        self._addressed: dict[str, tuple[int, tuple[str, ...]]] = {}
        """By pod: a process of it, and the addresses that were read of its network namespace."""
        self._faults = fault.Faults()
        self._events = nodeevents.NodeEvents(node, store)
        self._devices = DeviceManager(
            checkpoint.Checkpoint(self._folder),
            grace_s=settings.kubelet.endpoint_grace_s,
            changed=self._devices_changed,
            plugin_timeout_s=settings.kubelet.plugin_timeout_s,
            listed=self._events.plugin_listed,
        )
        self._home = checkpoint.home_id(self._folder)
        self._dra = dra.DRA(store, settings, node, self._folder, changed=self._claims_changed)
        self._machine: dict[str, str] = {}
        self._runtime = Runtime(
            store=store,
            engine=engine,
            images=images,
            devices=self._devices,
            claimed=self._dra.manager.cdi_devices,
            settings=RuntimeSettings.of(settings),
            identity=spec.Identity(node=node, home=self._home),
            allocatable=self._machine,
        )
        self._resizing = resizing.Resizing(self._machine, self._runtime.record, find_cgroup)
        self._prober = prober.Prober(
            engine, changed=self._probed, report=self._report_probe, target=self._runtime.probed
        )
        self._services = services.Services(store, pods=self._listed_pods, process=self._process)
        self._words: dict[str, dict[str, str]] = {}
        """By pod and engine name: the last words of its ended containers."""
        self._claims = PodClaims(self._dra.manager, self._dra.health, self._runtime.record)
        self._attachments = attachment.Attachments(
            store, self._devices, cdi_folder=settings.node.cdi_folder, record=self._runtime.keep
        )
        self._queue = WorkQueue(
            # One for each pod, as the real kubelet has: a worker may wait for a plugin that hangs, or for an image.
            "kubelet",
            self._work,
            workers=settings.kubelet.max_pods + 1,
        )
        self._relist, self._published = asyncio.Event(), asyncio.Event()
        self._has_pods, self._started = False, time.monotonic()
        self._info: core.NodeSystemInfo | None = None
        self._booted_at = 0.0

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; `ready` is called once the node is registered."""
        await self._prepare()
        async with (
            registration.serve_registration(self._devices, self._settings.kubelet_folder),
            podresources.serve_pod_resources(
                self._devices,
                self._known_pods,
                self._settings.pod_resources,
                claimed=self._claims.dynamic_resources,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._devices.run(), name="device manager")
            tasks.create_task(self._dra.run(), name="DRA drivers")
            tasks.create_task(self._prober.run(), name="probes")
            tasks.create_task(self._services.run(), name="services")
            tasks.create_task(self._resizing.run(), name="sizes")
            tasks.create_task(self._queue.run(), name="workers")
            tasks.create_task(self._events.run(), name="node events")
            # Through the work queue also the first time: two at once could each write from a read the other made stale.
            self._queue.add(_NODE_KEY)
            await self._published.wait()
            tasks.create_task(self._follow_engine(), name="engine events")
            tasks.create_task(self._follow_lists(), name="engine lists")
            tasks.create_task(self._follow_pods(), name="pods")
            tasks.create_task(self._attachments.follow(self._change_asked), name="device changes")
            ready()

    async def _prepare(self) -> None:
        """Describe the machine, see what runs, read the checkpoint; a damaged one is rebuilt from the containers."""
        info = await self._images.info()
        root, disk, most = self._settings.silicon.root, self._settings.state.folder, self._settings.kubelet.max_pods
        self._machine.update(await asyncio.to_thread(nodestatus.machine_capacity, root, max_pods=most, disk=disk))
        self._info = await asyncio.to_thread(nodestatus.describe, root, info)
        self._booted_at = await asyncio.to_thread(nodestatus.booted_at, root)
        await self._list_engine()
        has_devices, has_claims = self._devices.load(), self._dra.manager.load(self._info.boot_id)
        if has_devices and has_claims:
            return
        listing = await self._store.list(core.Pod, Selector(fields={"spec.nodeName": self._node}))
        if not has_devices:
            self._restore({pod.metadata.uid: pod for pod in listing.items})
        if not has_claims:
            await self._dra.manager.restore(listing.items)

    def _restore(self, pods: Mapping[str, core.Pod]) -> None:
        """Rebuild the checkpoint: what containers' labels say, and what their pods say of devices changed since."""
        alive = [state for state in self._containers.all() if state.phase is not ContainerPhase.EXITED]
        self._devices.restore(tuple(grant for state in alive for grant in attachment.grants_now(state, pods)))

    # what changes

    def _known_pods(self) -> Iterable[core.Pod]:
        return self._pods.values()

    def _listed_pods(self) -> tuple[core.Pod, ...]:
        return tuple(self._pods.values())

    def _process(self, uid: str) -> int | None:
        """Return a running process of a pod, in whose network all of them are."""
        every = (*self._containers.sandboxes(uid), *self._containers.of(uid))
        return next((one.pid for one in every if one.pid and one.phase is ContainerPhase.RUNNING), None)

    def _devices_changed(self) -> None:
        self._queue.add(_NODE_KEY)
        for pod in self._pods.values():
            if pod.status.phase in {"", "Pending"}:
                self._queue.add(pod.metadata.uid)

    def _claims_changed(self) -> None:
        """Look again at pods that wait for a driver, or whose devices' health may be another; retry at once."""
        for uid in self._claims.waiting():
            blocked = self._blocked.get(uid, {})
            blocked.update({name: dataclasses.replace(one, retry_at=0.0) for name, one in blocked.items()})
        for uid in {*self._claims.waiting(), *self._dra.manager.holders()}:
            self._queue.add(uid)

    def _probed(self, uid: str) -> None:
        self._queue.add(uid)

    async def _report_probe(self, pod: core.Pod, reason: str, message: str) -> None:
        await self._runtime.record(pod, "kubelet", reason, message, is_warning=True, facts={})

    async def _follow_pods(self) -> None:
        selector = Selector(fields={"spec.nodeName": self._node})
        while True:
            listing = await self._store.list(core.Pod, selector)
            self._pods = {pod.metadata.uid: pod for pod in listing.items}
            self._has_pods = True
            unused = await volumes.find_unused(self._folder.parent / "pods", self._engine)
            holders = self._devices.holders() | self._dra.manager.holders()
            for uid in {*self._pods, *self._containers.uids(), *holders, *unused}:
                self._queue.add(uid)
            with contextlib.suppress(errors.Gone):
                async for change in self._store.watch(core.Pod, selector, since=listing.resource_version):
                    self._pod_changed(change)

    def _pod_changed(self, change: Change[core.Pod]) -> None:
        self._services.changed()
        if change.renamed_to:
            return  # it goes on: its containers and its folder are not an orphan's
        pod = change.object
        if change.kind is ChangeKind.DELETED:
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = pod
            self._hurry(pod)
        self._queue.add(pod.metadata.uid)
        for uid in self._resizing.deferred:
            self._queue.add(uid)

    def _change_asked(self, uid: str) -> None:
        # Every pod is looked at when it is first listed, so one that is not known yet needs no look now.
        if uid in self._pods:
            self._queue.add(uid)

    async def _follow_engine(self) -> None:
        async for _ in self._engine.watch_changes():
            self._relist.set()

    async def _follow_lists(self) -> None:
        """List the engine after every event (those that arrive together count once) and at the slow interval."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.kubelet.resync_s):
                    await self._relist.wait()
            self._relist.clear()
            try:
                await self._list_engine()
            except errors.Unavailable as error:
                telemetry.log.warning("engine does not answer", reason=error.reason, error=error.message)

    async def _list_engine(self) -> None:
        """Take over what the engine has; every pod with a changed container is looked at again."""
        begun = self._containers.now()
        listed = await self._engine.list_containers({names.HOME: self._home})
        changed = self._containers.replace(listed, begun=begun)
        # Containers of pods that are gone are looked at after every list, changed or not, until they are gone too.
        gone = self._containers.uids() - self._pods.keys() if self._has_pods else set()
        for uid in {*changed, *gone}:
            self._queue.add(uid)

    # the node

    async def _publish(self) -> None:
        await nodestatus.publish(
            self._store,
            self._node,
            self._machine,
            self._devices.capacity(),
            self._info,
            is_ready=True,
            reason="KubeletReady",
        )

    async def _work(self, key: str) -> float | None:
        if key == _NODE_KEY:
            await self._publish()
            self._published.set()
            return None
        try:
            again_s = await self._runtime.noting(key, self._sync(key))
        except errors.FairleadError:
            raise
        except Exception as error:  # noqa: BLE001  (the edge of one pod's worker: a bug that one pod meets stays its own)
            return await self._mark_fault(key, error)
        if self._faults.end(key):
            self._queue.add(key)  # its status still says so
        return again_s

    async def _mark_fault(self, uid: str, error: Exception) -> float:
        """Say in log, event and status that a pod met an error of our own; return after how long it is tried again."""
        text, is_news, wait_s = self._faults.add(uid, error)
        telemetry.log.error("pod worker failed, this is a bug", pod=uid, error=text, exc_info=error)
        pod = self._pods.get(uid)
        with contextlib.suppress(errors.FairleadError):
            if pod is not None and is_news:
                said = fault.message(text)
                await self._runtime.record(pod, "kubelet", fault.REASON, said, is_warning=True, facts={"error": text})
            if pod is not None and (marked := self._faults.marked(uid, pod.status)) != pod.status:
                await self._write(pod, marked)
        return wait_s

    # one pod

    async def _sync(self, uid: str) -> float | None:
        pod = self._pods.get(uid)
        if pod is None:
            # Before the first list nothing is an orphan yet; the list itself asks for every uid there is.
            return await self._remove_orphan(uid) if self._has_pods else None
        states = self._containers.of(uid)
        await self._record_ends(pod, states)
        held_up_s = await self._attachments.carry_out(pod, states, wait_for=self._wait_for)
        self._prober.follow(pod, states)
        words = await self._last_words(pod, states)
        stored = pod
        size = await self._resizing.carry_out(pod, states, self._pods.values(), grace_s=podsync.grace_s(pod))
        pod = size.pod
        plan = podsync.sync(
            pod,
            tuple(spec.seen(state, self._booted_at, words.get(state.name, "")) for state in states),
            now=time.time(),
            backoff_s=self._settings.kubelet.backoff_s,
            blocked=self._blocked.get(uid, {}),
            healths=self._prober.healths(uid),
        )
        plan = dataclasses.replace(plan, status=size.told(stored, plan.status))
        if any(isinstance(act, _admitted(pod)) and not _is_ephemeral(pod, act) for act in plan.acts):
            if (wait_s := self._plugin_wait(pod)) is not None:
                return wait_s
            if not await self._admit(pod):
                return _ORPHAN_WAIT_S if self._has_orphans() else None
        if plan.is_over and (block := await self._release(pod)) is not None:
            return await self._hold_up(pod, plan, block)
        await self._report(pod, plan)
        kills = [act for act in plan.acts if isinstance(act, podsync.Kill)]
        if kills := kills or list(size.kills):
            await self._kill(pod, kills)
        for act in plan.acts:
            await self._carry_out(pod, act)
        if plan.forget:
            await self._forget(pod)
        if held_up_s is not None or size.again_s is not None:
            return held_up_s if held_up_s is not None else size.again_s
        return None if plan.wake_at is None else max(0.05, plan.wake_at - time.time())

    async def _last_words(self, pod: core.Pod, states: tuple[ContainerState, ...]) -> Mapping[str, str]:
        """Return what ended containers left as their last word, by engine name; each is read once."""
        known = self._words.setdefault(pod.metadata.uid, {})
        items = {item.name: item for item in _every(pod)}
        for state in states:
            item = items.get(state.labels.get(names.CONTAINER_NAME, ""))
            if item is not None and state.phase is ContainerPhase.EXITED and state.name not in known:
                known[state.name] = await self._runtime.last_word(pod, item, state, spec.seen(state).attempt)
        return known

    async def _record_ends(self, pod: core.Pod, states: tuple[ContainerState, ...]) -> None:
        known = {
            union.terminated.container_id
            for status in podstate.every_status(pod)
            for union in (status.state, status.last_state)
            if union.terminated
        }
        for state in states:
            is_news = state.phase is ContainerPhase.EXITED and self._containers.record_end(state.name)
            if is_news and state.container_id not in known:
                await self._runtime.record_end(pod, state)

    def _plugin_wait(self, pod: core.Pod) -> float | None:
        """Return a short wait while plugins may be registering after our start or their own end, else None."""
        grants = self._devices.held(pod.metadata.uid)
        held = {grant.resource for grant in grants if grant.response and not grant.must_pre_start}
        return self._wait_for(_requested(pod) - held)

    def _wait_for(self, resources: Set[str]) -> float | None:
        """Return a short wait where a plugin of these is not there and may yet be, else None."""
        missing = [name for name in resources if not self._devices.is_registered(name)]
        since = max([self._started, *(self._devices.away_since(name) for name in missing)])
        return 0.1 if missing and time.monotonic() - since <= _PLUGIN_WAIT_S else None

    async def _admit(self, pod: core.Pod) -> bool:
        """Give the pod its devices; a pod that cannot have them fails, as the real kubelet fails it.

        One whose claims cannot be prepared waits.
        """

        async def record(container: str, choice: Choice) -> None:
            self._runtime.note_choice(pod, container, choice)

        try:
            await self._devices.allocate(pod, record)
        except errors.FairleadError as error:
            if error.reason == "StateWriteFailed" or self._may_come_back(pod, error):
                raise
            # Devices of pods removed by force are free as soon as their containers are gone: that is worth a wait.
            if not (isinstance(error, errors.Insufficient) and self._has_orphans()):
                await self._reject(pod, error)
            return False
        self._unanswered.pop(pod.metadata.uid, None)
        if (block := await self._claims.prepare(pod)) is not None:
            every = (*pod.spec.init_containers, *pod.spec.containers)
            self._blocked.setdefault(pod.metadata.uid, {}).update({item.name: block for item in every})
            self._queue.add(pod.metadata.uid)  # its status is to say so
            return False
        telemetry.crash_point("kubelet.after-admit")
        # It may have been deleted while its plugin was asked: then nothing of it is to start.
        known = self._pods.get(pod.metadata.uid)
        return known is not None and known.metadata.deletion_timestamp is None

    def _may_come_back(self, pod: core.Pod, error: errors.FairleadError) -> bool:
        """Return whether a plugin that was not reached may be one that was killed and is started again."""
        if isinstance(error, errors.Insufficient):
            # The plugin went, or registered again and has not listed yet, while another pod was served.
            return self._plugin_wait(pod) is not None or self._may_heal(pod)
        if error.reason not in _PLUGIN_AWAY | _UNWELL:
            return False
        first = self._unanswered.setdefault(pod.metadata.uid, time.monotonic())
        return time.monotonic() - first <= _PLUGIN_WAIT_S

    def _may_heal(self, pod: core.Pod) -> bool:
        """Return whether devices that the pod asks for turned or came up unhealthy shortly before the pod came.

        The scheduler places a pod as soon as another one ended, before it hears that the GPUs are still being verified.
        """
        since, now = max(map(self._devices.unwell_since, _requested(pod))), time.monotonic()
        first = self._unanswered.setdefault(pod.metadata.uid, now)
        return first - since <= _PLUGIN_WAIT_S and now - first <= _PLUGIN_WAIT_S

    def _has_orphans(self) -> bool:
        """Return whether pods that have left the store still hold devices."""
        return bool(self._devices.holders() - self._pods.keys())

    async def _reject(self, pod: core.Pod, error: errors.FairleadError) -> None:
        """Fail a pod. Raises: Unavailable: its claims cannot be given back, which its end waits for."""
        text = errors.sentence(error)
        await self._runtime.record(pod, "kubelet", _NOT_ADMITTED, text, is_warning=True, facts={"cause": error.reason})
        # While a process runs, its devices are freed when the failed pod is looked at again; otherwise right here.
        if all(state.phase is ContainerPhase.EXITED for state in self._containers.of(pod.metadata.uid)):
            block = await self._release(pod)
            if block is not None:
                raise errors.Unavailable(block.message, reason=block.reason)
        status = podsync.fail(pod, _NOT_ADMITTED, text)
        await self._write(pod, status)

    async def _release(self, pod: core.Pod) -> podsync.Blocked | None:
        """Take devices back, end the sandbox and have claims unprepared, before the store says that the pod is over.

        The sandbox is removed with the pod: ended containers, kept for their logs, still refer to its network.
        Returns: why its claims cannot be unprepared.
        """
        for state in self._containers.sandboxes(pod.metadata.uid):
            if state.phase is not ContainerPhase.EXITED:
                await self._runtime.kill(state.name, 0.0)
                self._containers.put_ended(state)
        if await self._devices.free(pod.metadata.uid):
            await self._runtime.record(
                pod, "kubelet", "DevicesFreed", "all devices of the pod are free again", facts={}
            )
        return await self._claims.unprepare(pod)

    async def _hold_up(self, pod: core.Pod, plan: podsync.Plan, block: podsync.Blocked) -> float:
        """Say what keeps a pod from ending: its phase stays. Returns after how many seconds to try again."""
        phase = pod.status.phase or "Pending"
        status = msgspec.structs.replace(plan.status, phase=phase, reason=block.reason, message=block.message)
        await self._report(pod, dataclasses.replace(plan, status=status, forget=False))
        return max(0.05, block.retry_at - time.time())

    async def _report(self, pod: core.Pod, plan: podsync.Plan) -> None:
        held = None if plan.is_over else self._devices.held_by_container(pod.metadata.uid)
        reported = podstate.with_devices(plan.status, pod.status, held, self._claims.statuses(pod))
        addressed = podstate.with_addresses(reported, await self._addresses(pod, plan))
        status = self._faults.marked(pod.metadata.uid, addressed)
        if status != pod.status and not plan.forget:
            await self._write(pod, status)

    async def _addresses(self, pod: core.Pod, plan: podsync.Plan) -> tuple[str, ...]:
        """Return the addresses of the pod's own network; they are read once for each process."""
        alive = [
            one for one in self._containers.of(pod.metadata.uid) if one.pid and one.phase is ContainerPhase.RUNNING
        ]
        if plan.is_over or pod.spec.host_network or not alive:
            self._addressed.pop(pod.metadata.uid, None)
            return ()
        pid, known = self._addressed.get(pod.metadata.uid, (0, ()))
        if pid != alive[0].pid:
            pid = alive[0].pid or 0
            is_kept = spec.is_gvisor(pod)
            known = (
                await self._runtime.kept_addresses(pod) if is_kept else await asyncio.to_thread(address.of_process, pid)
            )
            self._addressed[pod.metadata.uid] = (pid, known)
        return known

    async def _write(self, pod: core.Pod, status: core.PodStatus) -> None:
        with contextlib.suppress(errors.NotFound):
            fresh = await self._store.get(core.Pod, pod.metadata.name, pod.metadata.namespace)
            if fresh.metadata.uid == pod.metadata.uid:
                seen = self._pods.get(pod.metadata.uid)
                # What others write of the status, maybe since `pod` was read: a stop, a warning, claims of templates.
                told = msgspec.structs.replace(
                    status,
                    conditions=restart.kept_gates(pod.spec, status.conditions, fresh.status.conditions),
                    stop_request=fresh.status.stop_request,
                    idle_notice=fresh.status.idle_notice,
                    resource_claim_statuses=fresh.status.resource_claim_statuses,
                    extended_resource_claim_status=fresh.status.extended_resource_claim_status,
                )
                self._take_over(seen, await self._store.update_status(msgspec.structs.replace(fresh, status=told)))

    def _take_over(self, seen: core.Pod | None, written: core.Pod) -> None:
        """Believe our own write ahead of its echo, unless the watch has reported the pod since `seen`.

        What the watch reported may be newer, even that the pod is gone: an answer that comes late must not bring it
        back.
        """
        if seen is not None and self._pods.get(written.metadata.uid) is seen:
            self._pods[written.metadata.uid] = written

    async def _carry_out(self, pod: core.Pod, act: podsync.Act) -> None:
        match act:
            case podsync.Start():
                await self._start(pod, act)
            case podsync.Resume():
                await self._resume(pod, act)
            case podsync.Kill():
                return  # all at once, before the rest
            case podsync.Remove():
                await self._runtime.remove(act.engine_name)
                self._containers.discard(act.engine_name)
            case _:
                assert_never(act)
        self._queue.add(pod.metadata.uid)

    async def _kill(self, pod: core.Pod, acts: list[podsync.Kill]) -> None:
        """Stop containers at the same time.

        A shorter grace that is asked for meanwhile ends the wait, and the next sync uses it.
        """
        uid = pod.metadata.uid
        longest_s = podsync.grace_s(self._pods.get(uid, pod))
        graces = [act.grace_s if act.why else min(act.grace_s, longest_s) for act in acts]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as wait:
                self._kills[uid] = (max(graces), wait)
                try:
                    await self._end_all(pod, acts, graces)
                finally:
                    del self._kills[uid]
        await self._list_engine()
        self._queue.add(uid)

    async def _end_all(self, pod: core.Pod, acts: list[podsync.Kill], graces: list[float]) -> None:
        every = [
            self._runtime.end(pod, act, self._containers.find(act.engine_name), grace_s)
            for act, grace_s in zip(acts, graces, strict=True)
        ]
        if len(every) == 1:
            await every[0]
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, one in enumerate(every):
                    tasks.create_task(one, name=f"end of {acts[number].engine_name}")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def _hurry(self, pod: core.Pod) -> None:
        """End the wait for a stop of this pod where its grace is shorter now."""
        grace_s, wait = self._kills.get(pod.metadata.uid, (0.0, None))
        if wait is not None and not wait.expired() and podsync.grace_s(pod) < grace_s:
            wait.reschedule(asyncio.get_running_loop().time())

    async def _start(self, pod: core.Pod, act: podsync.Start) -> None:
        outcome = await self._runtime.start(pod, _container(pod, act.container), act.attempt)
        if outcome is None:
            await self._list_engine()
            outcome = self._containers.find(spec.engine_name(pod, act.container, act.attempt)) or podsync.Blocked(
                reason="ContainerExists",
                message=f"the engine has the name of {act.container} but does not list it",
                is_final=False,
                retry_at=time.time() + _NAME_TAKEN_S,
            )
        self._take_in(pod, act.container, outcome)

    async def _resume(self, pod: core.Pod, act: podsync.Resume) -> None:
        if (state := self._containers.find(act.engine_name)) is not None:
            self._take_in(pod, act.container, await self._runtime.resume(pod, _container(pod, act.container), state))

    def _take_in(self, pod: core.Pod, container: str, outcome: podsync.Blocked | ContainerState) -> None:
        """Remember why a container could not start, or the container that did."""
        known = self._blocked.setdefault(pod.metadata.uid, {})
        if isinstance(outcome, podsync.Blocked):
            known[container] = outcome
        else:
            known.pop(container, None)
            self._containers.put(outcome)

    async def _forget(self, pod: core.Pod) -> None:
        for state in self._containers.sandboxes(pod.metadata.uid):
            await self._runtime.remove(state.name)
            self._containers.discard(state.name)
        await self._strike_out(pod.metadata.uid)
        telemetry.crash_point("kubelet.before-forget")
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.delete(
                core.Pod, pod.metadata.name, pod.metadata.namespace, grace_s=0, uid=pod.metadata.uid
            )

    async def _remove_orphan(self, uid: str) -> float | None:
        """Nothing in the store wants this pod: end its containers, then free its devices and its claims.

        Returns: after how many seconds to try again, because a driver is not there.
        """
        # The youngest first: ephemeral containers are in the namespaces of those before them.
        states = sorted(self._containers.of(uid), key=lambda one: one.started_at or time.time(), reverse=True)
        for state in (*states, *self._containers.sandboxes(uid)):
            await self._runtime.remove(state.name)
            self._containers.discard(state.name)
        if await self._devices.free(uid):
            telemetry.log.info("devices of a vanished pod freed", pod=uid)
        await self._strike_out(uid)
        return await self._claims.unprepare_orphan(uid)

    async def _strike_out(self, uid: str) -> None:
        """Keep nothing more of a pod whose containers are gone."""
        await self._runtime.forget(uid)
        self._attachments.forget(uid)
        self._prober.forget(uid)
        self._resizing.forget(uid)
        self._words.pop(uid, None)
        for kept in (self._blocked, self._unanswered, self._addressed):
            kept.pop(uid, None)
        self._claims.forget(uid)
        self._faults.end(uid)


def _requested(pod: core.Pod) -> set[str]:
    """Return the resources of devices that a pod asks for."""
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return {name for item in every for name, _ in device_requests(pod, item)}


def _admitted(pod: core.Pod) -> type[podsync.Act] | UnionType:
    """Return the acts before which a pod is admitted: with claims also the start of what was created before a kill."""
    return podsync.Start | podsync.Resume if lifecycle.has_claims(pod) else podsync.Start


def _container(pod: core.Pod, name: str) -> core.Container:
    return next(item for item in _every(pod) if item.name == name)


def _every(pod: core.Pod) -> tuple[core.Container, ...]:
    return (*pod.spec.containers, *pod.spec.init_containers, *pod.spec.ephemeral_containers)


def _is_ephemeral(pod: core.Pod, act: podsync.Act) -> bool:
    """Return whether an act is about a container that holds no devices, so that nothing has to be admitted for it."""
    named = act.container if isinstance(act, podsync.Start | podsync.Resume) else ""
    return any(item.name == named for item in pod.spec.ephemeral_containers)
