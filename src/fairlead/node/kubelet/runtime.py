"""Carries out what `plan.pod.life.podsync` decides for one pod, and records each act in the container's trace.

The order of a start is fixed and every step is idempotent: image, plugin's pre-start, CDI names resolved, sandbox,
container created with its process held, kernel rules read back, process let go. A kill between any two leaves state
that the next look at engine and checkpoint explains.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from fairlead import backoff, errors, telemetry
from fairlead.engine import machine as machine_engine
from fairlead.engine.port import Bind, ContainerPhase, ContainerSpec, ContainerState, Engine, IdentifiedImages
from fairlead.kernel import probeprocess, readback
from fairlead.kernel.network import address, listener
from fairlead.model.container.step import TraceStep
from fairlead.node.isolation import edits, nameddevice
from fairlead.node.kubelet import hostpath, joining, lastword, sandbox, spec, volumes
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.node.kubelet.devices.devicemanager import Choice, DeviceManager
from fairlead.node.kubelet.probing import check
from fairlead.node.sandbox import addresses, gofer, gvisor
from fairlead.node.tenancy import exports, fetch, gate, idranges, secrets, userids
from fairlead.node.tenancy.registries import Fetched, Registries
from fairlead.node.trace import steps
from fairlead.plan.cdi import requirement
from fairlead.plan.pod import mountable, volume
from fairlead.plan.pod.life import podsync, restart
from fairlead.plan.pod.network import sandboxed
from fairlead.plan.pod.values import downward
from fairlead.plan.sandbox import choice, nvproxy
from fairlead.plan.shim import foreignanswer
from fairlead.settings import EngineSettings, NodeSettings, Settings
from fairlead.store import tracerecorder
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, names

T = TypeVar("T")
_IMAGE_TRIES: Final = 3
_LEAST_GRACE_S: Final = 2.0
"""Between SIGTERM and SIGKILL where a preStop hook used the grace up, as the kubelet has it."""
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """What containers depend on, of the settings."""

    node: NodeSettings
    engine: EngineSettings
    state_folder: Path
    run_folder: Path
    claims_folder: Path
    registries_folder: Path
    kubelet_folder: Path
    mounts: str
    """Folders of the machine that users may mount, as `api.mounts` has them."""

    @staticmethod
    def of(settings: Settings) -> RuntimeSettings:
        """Return it of all settings."""
        return RuntimeSettings(
            node=settings.node,
            engine=settings.engine,
            state_folder=settings.state.folder,
            run_folder=settings.state.run,
            claims_folder=settings.claims_folder,
            registries_folder=settings.registries_folder,
            kubelet_folder=settings.kubelet_folder,
            mounts=settings.api.mounts,
        )


class Runtime:
    """Starts, stops and removes the containers of this node's pods."""

    def __init__(
        self,
        *,
        store: Store,
        engine: Engine,
        images: IdentifiedImages,
        devices: DeviceManager,
        claimed: Callable[[core.Pod, core.Container], tuple[str, ...]],
        settings: RuntimeSettings,
        identity: spec.Identity,
        allocatable: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take the ports and whose containers they are.

        Args: claimed: the CDI names that a container has by claims.   allocatable: the machine's resources, live.
        """
        self._allocatable = allocatable
        self._store = store
        self._engine = engine
        self._images = images
        folder = settings.registries_folder
        self._fetch = fetch.Fetch(images, Registries(folder), Fetched(folder))
        self._devices, self._claimed = devices, claimed
        self._settings = settings
        self._node_folder = settings.run_folder / "device-nodes"
        self._exports = exports.Exports(settings.claims_folder)
        self._ids = idranges.IDRanges(store)
        self._identity = identity
        self._failures: dict[tuple[str, str], int] = {}
        self._notes: dict[str, asyncio.TaskGroup] = {}
        """By uid of each pod that is worked on."""

    async def record(
        self,
        pod: core.Pod,
        layer: str,
        reason: str,
        message: str,
        *,
        facts: Mapping[str, object],
        duration_s: float | None = None,
        is_warning: bool = False,
    ) -> None:
        """Keep one step of the pod's trace."""
        step = TraceStep(
            layer=layer,
            reason=reason,
            message=message,
            at=time.time(),
            duration_s=duration_s,
            facts=facts,
            is_warning=is_warning,
        )
        await self.keep(pod, step)

    async def keep(self, pod: core.Pod, step: TraceStep) -> None:
        """Keep one step of the pod's trace as it is."""
        await tracerecorder.record(self._store, tracerecorder.reference(pod), step, host=self._identity.node)

    async def noting(self, uid: str, work: Awaitable[T]) -> T:
        """Await work on a pod; the steps that it notes are kept beside it, and are all kept when it has ended.

        Each write of the store syncs a disk: one after the other, they would be a tenth of a container's start.
        """
        async with asyncio.TaskGroup() as self._notes[uid]:
            (outcome,) = await asyncio.gather(work, return_exceptions=True)
        del self._notes[uid]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def note(self, pod: core.Pod, step: TraceStep) -> None:
        """Keep one step of the pod's trace; only in what `noting` awaits."""
        self._notes[pod.metadata.uid].create_task(self.keep(pod, step), name=step.reason)

    def note_choice(self, pod: core.Pod, container: str, choice: Choice) -> None:
        """Keep how devices were chosen and what the plugin answered."""
        grant = choice.grant
        chosen = steps.chosen(
            container,
            choice.resource,
            grant.device_ids,
            asked=choice.asked,
            available=choice.available,
            preferred=choice.preferred,
            at=time.time(),
            duration_s=choice.chosen_s,
        )
        self.note(pod, chosen)
        answer = spec.merged_answer((grant,))
        allocated = steps.allocated(
            container,
            choice.resource,
            answer,
            foreignanswer.named(answer),
            at=time.time(),
            duration_s=choice.allocate_s,
        )
        self.note(pod, allocated)

    # starting

    async def start(self, pod: core.Pod, item: core.Container, attempt: int) -> podsync.Blocked | ContainerState | None:
        """Bring one attempt of a container to life.

        Returns: the container as it runs; what is in the way; None where it exists already and must be looked at.
        """
        try:
            state = await self._create(pod, item, attempt)
        except errors.FairleadError as error:
            if error.reason == "ContainerExists":
                return None
            return await self._blocked(pod, item, error)
        self._failures.pop((pod.metadata.uid, item.name), None)
        return state

    async def _blocked(self, pod: core.Pod, item: core.Container, error: errors.FairleadError) -> podsync.Blocked:
        if error.reason == "PortTaken":
            error = await asyncio.to_thread(with_listener, pod, error)
        key = (pod.metadata.uid, item.name)
        tries = self._failures[key] = self._failures.get(key, 0) + 1
        is_hopeless = isinstance(error, errors.RequestError | errors.ProtocolError | errors.DeviceFault)
        is_hopeless = is_hopeless or error.reason == requirement.UNMET  # no driver changes within seconds
        is_final = restart.policy(pod.spec, item) == "Never" and (is_hopeless or tries >= _IMAGE_TRIES)
        is_waiting = secrets.is_waited_for(error)
        is_final = is_final and not isinstance(item, core.EphemeralContainer)  # it has no part in the pod's end
        is_final = is_final and not is_waiting and error.reason not in gate.PATIENT
        text = errors.sentence(error)
        facts = {"container": item.name, "try": tries, "is_final": is_final}
        if tries == 1 or not is_waiting:  # a wait of days is one step
            await self.record(pod, "engine", error.reason, text, is_warning=True, facts=facts)
        last_s = _FIRST_RETRY_S if is_waiting or error.reason in gate.PATIENT else _LAST_RETRY_S
        retry_at = time.time() + backoff.doubled(tries - 1, first_s=_FIRST_RETRY_S, last_s=last_s)
        return podsync.Blocked(reason=error.reason, message=text, is_final=is_final, retry_at=retry_at)

    def _may_pull(self, item: core.Container) -> bool:
        # localhost/ is of images that were made on a machine: no registry has them, and asking one takes long.
        is_local = item.image.startswith("localhost/")
        return self._settings.engine.pull and item.image_pull_policy != "Never" and not is_local

    async def _create_pulling(
        self, pod: core.Pod, item: core.Container, wanted: ContainerSpec, tenancy: Tenancy | None
    ) -> ContainerState:
        """Create the container, fetching its image first if it must be and afterwards if it was missing.

        The engine is not asked beforehand whether the image is there: creating the container says so, and costs no
        extra call. An image that came with another tenancy's credentials is asked for again.
        """
        always = item.image_pull_policy == "Always" and self._may_pull(item)
        if always or await self._fetch.must_ask(item.image, tenancy):
            if not self._may_pull(item):
                raise fetch.refuse(item.image)
            await self._pull(pod, item, tenancy)
        try:
            return await self._engine.create(wanted)
        except errors.NotFound as error:
            if error.reason != "ImageNotFound":
                raise
            if not self._may_pull(item):
                raise fetch.refuse(item.image) from error
        await self._pull(pod, item, tenancy)
        return await self._engine.create(wanted)

    async def _pull(self, pod: core.Pod, item: core.Container, tenancy: Tenancy | None) -> None:
        with telemetry.timed("image pulled", container=item.name) as timing:
            await self._fetch.fetch(item.image, tenancy)
        self.note(pod, steps.pulled(item.name, item.image, at=time.time(), duration_s=timing.duration_s))

    async def _create(self, pod: core.Pod, item: core.Container, attempt: int) -> ContainerState:
        grants = self._grants(pod, item)
        await self._devices.pre_start(grants)
        tenancy = await gate.find(self._store, pod)
        taken = await secrets.held(self._store, pod, self._settings.state_folder)
        maps = await secrets.config_maps(self._store, pod)
        specs = edits.Reading(self._settings.node.cdi_folder)
        joined, network_of, ids = await self._beside(pod, item, tenancy, specs)
        facts = await self._facts(pod, network_of)
        values = spec.values(pod, item, maps, facts)
        item = spec.with_sub_paths(item, pod, taken, values)
        in_files = secrets.plan_files(pod, taken, maps, facts)
        claims = await self._claims(pod)
        is_exported = bool(claims) and tenancy is not None and await self._exports.check(tenancy)
        owner = 0 if self._settings.engine.user_namespaces == "never" else ids
        make = functools.partial(volumes.ensure, is_exported=is_exported, value_files=in_files)
        folder = self._pod_folder(pod.metadata.uid)
        folders = await asyncio.to_thread(make, folder, pod, claims, owner)
        folders |= await asyncio.to_thread(volumes.show_parts, folder, pod, item, folders)
        cdi_devices = await self._cdi_names(pod, item, grants, specs)
        shown = joining.beside(pod, item) if isinstance(item, core.EphemeralContainer) else (pod, item)
        wanted = spec.container_spec(
            *shown,
            attempt,
            identity=self._identity,
            grants=grants,
            volumes=folders,
            network_of=network_of,
            cdi_devices=cdi_devices,
        )
        wanted = spec.with_secrets(wanted, pod, item, grants=grants, held=taken, values=values)
        wanted = await self._with_last_word(wanted, pod, item, attempt)
        wanted = wanted if joined is None else joined.applied(wanted)
        wanted = spec.in_tenancy(wanted, tenancy)
        _check_isolation(pod, tenancy)
        if wanted.runtime:
            await self._check_sandbox(wanted.runtime)
        resolved = (await self._resolve(pod, item, wanted, specs)).beside(spec.device_paths(grants))
        wanted = userids.mapped(wanted, ids, resolved, self._node_folder)
        # What reads the isolation back starts while the engine works: its interpreter takes some 20 ms.
        is_probed = bool(resolved.paths) and not wanted.runtime
        async with readback.started_ahead(is_wanted=is_probed) as probe:
            telemetry.crash_point("kubelet.before-create")
            with telemetry.timed("container created", container=wanted.name) as timing:
                state = await self._create_pulling(pod, item, wanted, tenancy)
            telemetry.crash_point("kubelet.after-create")
            self.note(
                pod, steps.created(item.name, attempt, wanted, state, at=time.time(), duration_s=timing.duration_s)
            )
            return await self._let_go(pod, item, state, resolved, probe)

    async def _beside(
        self, pod: core.Pod, item: core.Container, tenancy: Tenancy | None, specs: edits.Reading
    ) -> tuple[joining.Joined | None, str | None, int | None]:
        """Return what a container joins, the engine name of what has its network, and the first of its user ids."""
        if not isinstance(item, core.EphemeralContainer):
            wanted = await self._user_ids(pod, item, tenancy, specs)
            return None, *(await self._ensure_sandbox(pod, tenancy, wanted, specs))
        states = await self._engine.list_containers({names.POD_UID: pod.metadata.uid})
        joined = joining.find(pod, item, states)
        return joined, joined.network_of, await asyncio.to_thread(joining.first_user_id, joined.pid)

    async def _with_last_word(
        self, wanted: ContainerSpec, pod: core.Pod, item: core.Container, attempt: int
    ) -> ContainerSpec:
        """Return a container that can leave its last word in a file."""
        if not item.termination_message_path:
            return wanted
        folder = self._pod_folder(pod.metadata.uid)
        path = await asyncio.to_thread(volumes.ensure_last_word_file, folder, item.name, attempt)
        bind = Bind(host_path=str(path), container_path=item.termination_message_path, is_untrusted=True)
        return dataclasses.replace(wanted, binds=(*wanted.binds, bind))

    async def last_word(self, pod: core.Pod, item: core.Container, state: ContainerState, attempt: int) -> str:
        """Return what an ended container left as its last word: of its file, or else of the end of its output."""
        if not item.termination_message_path:
            return ""
        path = volumes.last_word_file(self._pod_folder(pod.metadata.uid), item.name, attempt)
        text = await asyncio.to_thread(lastword.read_end, path)
        if text or not state.exit_code or item.termination_message_policy != lastword.FALLBACK:
            return text
        return await lastword.end_of_output(self._engine, state.name)

    async def _facts(self, pod: core.Pod, network_of: str | None) -> downward.Facts:
        """Return what the pod's containers may be given of where they run."""
        host = await asyncio.to_thread(address.of_process, "self")
        own = host if pod.spec.host_network else ()
        if spec.is_gvisor(pod):
            own = await self.kept_addresses(pod)
        elif network_of is not None and downward.needs_address(pod.spec) and not pod.spec.host_network:
            found = await self._engine.list_containers({names.POD_UID: pod.metadata.uid})
            pid = next((state.pid for state in found if state.name == network_of), None)
            own = () if pid is None else await asyncio.to_thread(address.of_process, pid)
        return downward.Facts(pod_addresses=own, host_addresses=host, allocatable=self._allocatable)

    async def kept_addresses(self, pod: core.Pod) -> tuple[str, ...]:
        """Return the addresses by which a pod on gVisor is reached from this machine."""
        return await asyncio.to_thread(addresses.read, self._pod_folder(pod.metadata.uid))

    async def _check_sandbox(self, runtime: str) -> None:
        """Refuse a start on gVisor where its handler is gone since the pod was accepted.

        Raises: Unavailable (`IsolationUnavailable`).
        """
        if not await asyncio.to_thread(machine_engine.find_runtime, self._settings.engine, runtime):
            raise gvisor.absent(f"podman has no runtime {runtime} any more")

    async def _claims(self, pod: core.Pod) -> dict[str, Path]:
        """Return the folders of the pod's claims by name. Raises: NotFound: one is gone."""
        names, namespace = volume.claims(pod.spec), pod.metadata.namespace
        found = [await self._store.get(core.PersistentVolumeClaim, name, namespace) for name in names]
        return {one.metadata.name: volume.folder(self._settings.claims_folder, one) for one in found}

    async def _cdi_names(
        self, pod: core.Pod, item: core.Container, grants: tuple[Grant, ...], specs: edits.Reading
    ) -> tuple[str, ...]:
        """Return the names the engine is asked for; what DRA drivers named for claims comes last, as they named it.

        Args: specs: in which devices that were asked for by name are judged.
        """
        defined = await asyncio.to_thread(specs.defined) if spec.is_word_asked(grants) else frozenset()
        allocated = spec.cdi_names(item, grants, has_variants=self._settings.node.cdi_variants, defined=defined)
        named = () if isinstance(item, core.EphemeralContainer) else spec.machine(pod).devices
        if named:
            await asyncio.to_thread(nameddevice.check, named, specs)
        return tuple(dict.fromkeys((*allocated, *self._claimed(pod, item), *named)))

    async def _resolve(
        self, pod: core.Pod, item: core.Container, wanted: ContainerSpec, specs: edits.Reading
    ) -> edits.Resolved:
        """Look the CDI names up ourselves first: an engine must never be able to ignore one silently."""
        if not wanted.cdi_devices:
            return edits.Resolved()
        with telemetry.timed("cdi resolved", container=wanted.name) as timing:
            resolved = await asyncio.to_thread(specs.resolve, wanted.cdi_devices)
        self.note(
            pod, steps.resolved(item.name, wanted.cdi_devices, resolved, at=time.time(), duration_s=timing.duration_s)
        )
        return resolved

    async def resume(
        self, pod: core.Pod, item: core.Container, state: ContainerState
    ) -> podsync.Blocked | ContainerState:
        """Let a container go that was created before we were killed, after the same read-back.

        One without a process was never initialised: starting it would run its first instruction before anything could
        be read back. It is removed and recreated.
        """
        held = self._devices.held(pod.metadata.uid)
        grants = tuple(grant for grant in held if grant.container == item.name)
        try:
            if state.pid is None:
                return await self._remake(pod, item, state)
            specs = edits.Reading(self._settings.node.cdi_folder)
            names = await self._cdi_names(pod, item, grants, specs)
            resolved = await asyncio.to_thread(specs.resolve, names)
            return await self._let_go(pod, item, state, resolved.beside(spec.device_paths(grants)))
        except errors.FairleadError as error:
            return await self._blocked(pod, item, error)

    async def _remake(self, pod: core.Pod, item: core.Container, state: ContainerState) -> ContainerState:
        text = f"{state.name} had been created and never initialised: made again, so that its device rules can be read"
        facts = {"container": item.name, "name": state.name}
        await self.record(pod, "engine", "ContainerRemade", text, facts=facts)
        await self._engine.remove(state.name)
        return await self._create(pod, item, spec.seen(state).attempt)

    async def _let_go(
        self,
        pod: core.Pod,
        item: core.Container,
        state: ContainerState,
        resolved: edits.Resolved,
        probe: probeprocess.ProbeProcess | None = None,
    ) -> ContainerState:
        name = state.name
        pid, own = state.pid, None
        if pid is not None and spec.is_gvisor(pod):
            # gVisor's kernel has no mounts and no device nodes of the host's: its gofer has the container's.
            try:
                own = await asyncio.to_thread(_gofer, pod, state.id, pid)
            except errors.Unavailable:
                await self._engine.remove(name)  # its processes are gone, or it is not gVisor: it is recreated
                raise
            if not sandboxed.has_sandbox(pod.spec):
                await asyncio.to_thread(addresses.keep, self._pod_folder(pod.metadata.uid), pid)
            pid = own.pid
        root = "" if own is None else own.root
        await self._check_host_paths(pod, item, dataclasses.replace(state, pid=pid), root)
        await self._check_network(pod, item)
        await userids.confine(pid, name)
        unmet = await self._examine(pod, item, state, resolved, probe, own)
        if unmet is not None:
            await self._engine.remove(name)
            raise errors.Unavailable(unmet[0], reason=requirement.UNMET, hint=unmet[1])
        telemetry.crash_point("kubelet.before-start")
        with telemetry.timed("container started", container=name) as timing:
            await self._engine.start(name)
        telemetry.crash_point("kubelet.after-start")
        self.note(pod, steps.started(item.name, name, at=time.time(), duration_s=timing.duration_s))
        return dataclasses.replace(state, phase=ContainerPhase.RUNNING, started_at=time.time())

    async def _check_network(self, pod: core.Pod, item: core.Container) -> None:
        """Read back that a tenancy's packets are filtered. Raises: as `gate`: nothing of it is let go."""
        tenancy = await gate.find(self._store, pod)
        if tenancy is None or spec.network(pod) is not None:
            return
        with telemetry.timed("network isolation read", container=item.name) as timing:
            families = await gate.check(tenancy, self._identity.home)
        if families:
            self.note(
                pod,
                steps.network_read(
                    item.name, tenancy.metadata.name, families, at=time.time(), duration_s=timing.duration_s
                ),
            )

    async def _check_host_paths(self, pod: core.Pod, item: core.Container, state: ContainerState, root: str) -> None:
        """Hold a tenant's container to the rules by what it has mounted. Raises: Denied: it is removed.

        Args: state: its pid is that of the process that has the container's mounts, below `root`.
        """
        mounted = hostpath.paths(pod, item)
        if not mounted or not hostpath.is_tenants(pod, await self._namespace(pod)):
            return
        if state.pid is None:
            message = f"{state.name} has no process whose mounts can be read: it is not started"
            raise errors.Unavailable(message, reason="IsolationUnread", hint="it is tried again")
        mine = self._settings
        own = (mine.state_folder, mine.run_folder, mine.node.cdi_folder, mine.kubelet_folder)
        try:
            await asyncio.to_thread(hostpath.check, state.pid, mounted, own, root=root)
            if mountable.is_marked(pod):
                listed = mountable.parse(mine.mounts)
                await asyncio.to_thread(hostpath.check_listed, state.pid, mounted, listed, root=root)
        except errors.Denied:
            await self._engine.remove(state.name)
            raise

    async def _namespace(self, pod: core.Pod) -> core.Namespace | None:
        try:
            return await self._store.get(core.Namespace, pod.metadata.namespace)
        except errors.NotFound:
            return None

    async def _examine(
        self,
        pod: core.Pod,
        item: core.Container,
        state: ContainerState,
        resolved: edits.Resolved,
        probe: probeprocess.ProbeProcess | None,
        own: gofer.Gofer | None,
    ) -> tuple[str, str] | None:
        """Read back what the kernel enforces and, at the same time, hold driver and GPUs to what the image needs.

        Args:    own: the gofer of a container on gVisor.
        Returns: the requirement that is not met and which side to change; None: let it go.
        Raises:  Unavailable (`IsolationUnread`): it has devices and no process to read them back from.
        """
        if state.pid is None and resolved.paths:
            message = f"{state.name} has no process whose device rules can be read: it is not started"
            raise errors.Unavailable(message, reason="IsolationUnread", hint="it is tried again")
        try:
            async with asyncio.TaskGroup() as tasks:
                if own is not None:
                    tasks.create_task(self._read_gofer(pod, item, own, resolved))
                elif state.pid is not None and resolved.paths:
                    tasks.create_task(self._read_back(pod, item, state.pid, resolved, probe))
                judged = tasks.create_task(self._judge(item, state, resolved.hosts()))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return judged.result()

    async def _judge(
        self, item: core.Container, state: ContainerState, hosts: list[requirement.Facts]
    ) -> tuple[str, str] | None:
        if not hosts[0].driver:
            return None
        env = dict(state.env or {})
        if state.env is None:
            env = {**await self._images.environment(item.image), **{one.name: one.value for one in item.env}}
        return requirement.first_problem(requirement.stated(env), hosts)

    async def _read_back(
        self,
        pod: core.Pod,
        item: core.Container,
        pid: int,
        resolved: edits.Resolved,
        probe: probeprocess.ProbeProcess | None,
    ) -> None:
        with telemetry.timed("isolation read", container=item.name) as timing:
            found = await readback.read_back(pid, paths=resolved.paths, numbers=resolved.others, waiting=probe)
        step = steps.isolation_read(
            item.name, pid, found, granted=resolved.paths, at=time.time(), duration_s=timing.duration_s
        )
        self.note(pod, step)

    async def _read_gofer(
        self, pod: core.Pod, item: core.Container, own: gofer.Gofer, resolved: edits.Resolved
    ) -> None:
        """Read back which device nodes gVisor can open. Raises: Unavailable (`GoferUnread`): it is not let go."""
        with telemetry.timed("isolation read", container=item.name) as timing:
            found = await asyncio.to_thread(gofer.read, own)
        if resolved.paths:
            step = steps.gofer_read(
                item.name, own.pid, found, granted=resolved.paths, at=time.time(), duration_s=timing.duration_s
            )
            self.note(pod, step)

    def _grants(self, pod: core.Pod, item: core.Container) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._devices.held(pod.metadata.uid) if grant.container == item.name)

    async def _user_ids(
        self, pod: core.Pod, item: core.Container, tenancy: Tenancy | None, specs: edits.Reading
    ) -> int | None:
        """Return the first user id of the pod's user namespace; None: it has none, and its trace says why.

        Raises: Unavailable (`UserNamespaceUnusable`): it must have one.
        """
        owner, mounts = await self._ids.find(pod, tenancy), mountable.is_marked(pod)
        if not mounts and (pod.spec.host_network or owner is None):
            return None
        found = await self._resolve_all(pod, specs)
        setting = self._settings.engine.user_namespaces
        first, problem = userids.decide(owner, found, self._node_folder, setting=setting, has_mounts=mounts)
        if problem:
            self.note(pod, steps.host_user_ids(item.name, problem, at=time.time()))
        return first

    async def _resolve_all(self, pod: core.Pod, specs: edits.Reading) -> list[edits.Resolved]:
        """Return what is resolved of each container's CDI names, for those that have some."""
        every = (*pod.spec.init_containers, *pod.spec.containers)
        names = [await self._cdi_names(pod, one, self._grants(pod, one), specs) for one in every]
        return [await asyncio.to_thread(specs.resolve, some) for some in names if some]

    async def _has_driver_calls(self, pod: core.Pod, specs: edits.Reading) -> bool:
        """Return whether any container of a pod is to call NVIDIA's driver, as gVisor knows it by its devices."""
        found = {path for one in await self._resolve_all(pod, specs) for path in one.paths}
        return nvproxy.CONTROL in found.union(spec.device_paths(self._devices.held(pod.metadata.uid)))

    async def _ensure_sandbox(
        self, pod: core.Pod, tenancy: Tenancy | None, ids: int | None, specs: edits.Reading
    ) -> tuple[str | None, int | None]:
        """Return the engine name of the pod's sandbox, made and running, and the first of its user ids.

        One that runs already keeps the ids it was made with. On gVisor the containers run in it, not beside it.
        """
        if not sandboxed.has_sandbox(pod.spec):
            return None, ids
        name = spec.engine_name(pod, sandbox.CONTAINER, 0)
        found = await self._engine.list_containers({names.POD_UID: pod.metadata.uid})
        old = next((state for state in found if state.name == name), None)
        if old is not None and old.phase is ContainerPhase.RUNNING:
            return name, int(old.labels.get(names.USER_IDS, "0")) or None
        if old is not None:
            # Ended containers, kept for their logs, still refer to its network: they go before it.
            ended = [state for state in found if state is not old and state.phase is ContainerPhase.EXITED]
            ended.sort(key=lambda state: state.started_at or 0.0, reverse=True)  # the youngest may have joined another
            for state in (*ended, old):
                await self._engine.remove(state.name)
        image = await sandbox.ensure_image(self._images, platform.machine())
        labels = {
            **spec.labels(pod, sandbox.CONTAINER, 0, self._identity, ()),
            **({names.USER_IDS: str(ids)} if ids else {}),
        }
        lasting = (one for one in pod.spec.init_containers if one.restart_policy == "Always")
        listens = spec.ports((*pod.spec.containers, *lasting))
        wanted = ContainerSpec(
            name=name,
            image=image,
            labels=labels,
            ports=listens,
            **spec.known_names(pod),
            network=spec.network(pod),
            first_user_id=ids,
            runtime=spec.runtime(pod),
            **spec.summed_limits(pod),
            passes_driver_calls=spec.is_gvisor(pod) and await self._has_driver_calls(pod, specs),
        )
        made = await self._engine.create(spec.in_tenancy(wanted, tenancy))
        telemetry.crash_point("kubelet.after-sandbox")
        if spec.is_gvisor(pod):
            await asyncio.to_thread(gofer.find, made.pid or 0)
            await asyncio.to_thread(addresses.keep, self._pod_folder(pod.metadata.uid), made.pid or 0)
        await self._engine.start(name)
        return name, ids

    def _pod_folder(self, uid: str) -> Path:
        return self._settings.state_folder / "pods" / uid

    # ending

    async def probed(self, pod: core.Pod, item: core.Container, state: ContainerState) -> check.Target:
        """Return a running container as hooks and probes reach it."""
        found = await self.kept_addresses(pod) if spec.is_gvisor(pod) else None
        return check.Target(item=item, engine_name=state.name, pid=state.pid, addresses=found)

    async def end(self, pod: core.Pod, act: podsync.Kill, state: ContainerState | None, grace_s: float) -> None:
        """Stop one container of a pod: its preStop hook first, whose time counts to the grace."""
        every = (*pod.spec.init_containers, *pod.spec.containers)
        item = next((one for one in every if one.name == act.container), None)
        hook = item.lifecycle.pre_stop if item is not None and item.lifecycle is not None else None
        if act.why:
            text = f"container {act.container}: {act.why}: it is stopped"
            await self.record(pod, "kubelet", "Killing", text, is_warning=True, facts={"container": act.container})
        if hook is not None and item is not None and state is not None and grace_s > 0:
            begun = time.monotonic()
            target = await self.probed(pod, item, state)
            done = await check.hook(self._engine, target, hook, grace_s)
            if not done.is_good:
                text = f"container {act.container}: its preStop hook failed: {done.text}"
                facts = {"container": act.container}
                await self.record(pod, "kubelet", "FailedPreStopHook", text, is_warning=True, facts=facts)
            grace_s = max(_LEAST_GRACE_S, grace_s - (time.monotonic() - begun))
        await self.kill(act.engine_name, grace_s)

    async def kill(self, name: str, grace_s: float) -> None:
        """Stop one container, politely first."""
        telemetry.crash_point("kubelet.before-stop")
        await self._engine.stop(name, grace_s=grace_s)
        telemetry.crash_point("kubelet.after-stop")

    async def remove(self, name: str) -> None:
        """Forget one container."""
        telemetry.crash_point("kubelet.before-remove")
        await self._engine.remove(name)
        telemetry.crash_point("kubelet.after-remove")

    async def record_end(self, pod: core.Pod, state: ContainerState) -> None:
        """Keep how a container ended."""
        # Engines report whole seconds: a shorter run has no length to read.
        seconds = round((state.finished_at or 0) - (state.started_at or 0))
        ran_s = seconds if state.started_at and state.finished_at and seconds > 0 else None
        container = state.labels.get(names.CONTAINER_NAME, "")
        step = steps.ended(container, state.exit_code, oom_killed=state.oom_killed, ran_s=ran_s, at=time.time())
        await self.keep(pod, step)

    async def forget(self, uid: str) -> None:
        """Remove the pod's folder and what is remembered of its failures."""
        self._failures = {key: value for key, value in self._failures.items() if key[0] != uid}
        await asyncio.to_thread(volumes.discard, self._pod_folder(uid))


def grants_of(state: ContainerState) -> tuple[Grant, ...]:
    """Return what a container's labels say it holds; the plugin's answer itself is not kept there."""
    try:
        held = json.loads(state.labels.get(names.DEVICES, "{}"))
    except ValueError:
        return ()
    uid, name = state.labels.get(names.POD_UID, ""), state.labels.get(names.CONTAINER_NAME, "")
    return tuple(
        Grant(pod_uid=uid, container=name, resource=resource, device_ids=tuple(ids), response=b"")
        for resource, ids in sorted(held.items())
    )


def _gofer(pod: core.Pod, container: str, pid: int) -> gofer.Gofer:
    """Return the gofer of a held container on gVisor. Raises: Unavailable (`GoferUnread`).

    Args: container: its id.   pid: as the engine says it.
    """
    return gofer.find_joined(pid, container) if sandboxed.has_sandbox(pod.spec) else gofer.find(pid)


def _check_isolation(pod: core.Pod, tenancy: Tenancy | None) -> None:
    """Refuse a start with less than its tenancy demands now: it was accepted before that. Raises: Denied."""
    if tenancy is None:
        return
    wanted, name = tenancy.spec.isolation, tenancy.metadata.name
    if choice.bound(pod, wanted, name).spec.runtime_class_name != pod.spec.runtime_class_name:
        message = f'tenancy "{name}" demands isolation {wanted} since this container was accepted'
        raise errors.Denied(message, reason="IsolationBound", hint="run it again")


def with_listener(pod: core.Pod, error: errors.FairleadError) -> errors.FairleadError:
    """Return the error of a port that is taken, with its holder; a tenant does not see the machine's processes."""
    if names.TENANT in pod.metadata.annotations:
        return error
    ports = [one for item in pod.spec.containers for one in item.ports if one.host_port]
    who = [(one.host_port, listener.find_listener(one.host_port, one.protocol or "TCP")) for one in ports]
    told = ", ".join(f"port {port} is taken by {holder}" for port, holder in who if holder)
    if not told:
        return error
    return errors.Unavailable(f"{told}: {error}", reason=error.reason, hint=error.hint)
