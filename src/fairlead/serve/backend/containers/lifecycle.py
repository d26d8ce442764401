"""Submits, stops and removes pods: on a machine by requests that its kubelet knows, on a cluster by its API server.

Nothing here starts or stops a process: the node's kubelet does, when it sees the object change.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.model.step import TraceStep
from fairlead.plan.gpu.allocation import foreignrequest
from fairlead.plan.pod import admission, machine, podstate, priority, quota, tenantrule, userrule, volume
from fairlead.plan.schedule.fairshare import ledger, tree
from fairlead.plan.tenancy import baseline, secret
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.containers.replacement import Replacements
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store import retry, subresource, tracerecorder
from fairlead.store.port import AdmittingStore, Reader, Selector, Store
from fairlead.wire.fairlead import tenancy as tenancies
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.coordination import PriorityClass
from fairlead.wire.kubernetes.devicechange import PodReplacementSpec
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.scheduling.queue import Queue

T = TypeVar("T", bound=Object)
_ANYWHERE: Final = machine.Here()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLifecycle:
    """A `port.ManifestLifecycle` whose kubelet knows our request for a stop and whose admission is ours."""

    store: AdmittingStore
    here: machine.Here = _ANYWHERE
    replacements: Replacements = field(init=False)
    requests: idempotency.LocalRequests = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "replacements", Replacements(store=self.store, submitter=self))
        object.__setattr__(self, "requests", idempotency.LocalRequests(store=self.store))

    async def keep(self) -> None:
        """Carry on restarts that an earlier process left, and forget old requests, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.replacements.carry_on(), name="restarts")
            tasks.create_task(self.requests.keep(), name="old requests")

    async def submit(
        self,
        pod: core.Pod,
        *,
        makes_namespace: bool = False,
        written: Mapping[str, Any] | None = None,
        most_devices: int = 0,
        once: idempotency.Once | None = None,
    ) -> core.Pod:
        """See `port.Lifecycle.submit`; records that the pod was accepted."""
        if makes_namespace:
            name = pod.metadata.namespace
            await namespaces.ensure(self.store, name, labels={tenantrule.TENANCY: name})
        telemetry.crash_point("submission.before-store")
        started = time.monotonic()
        admitted, rules = await self._admitted(pod, written, is_tenants=makes_namespace, most_devices=most_devices)
        # Taken before the pod is visible: the scheduler may have bound it before `create` returns.
        accepted_at = time.time()
        try:
            created = await self.store.create_checked(
                admitted, lambda seen: _check(seen, admitted, rules), beside=once.record if once else None
            )
        except errors.Conflict as error:
            raise _taken(pod, error) from error
        telemetry.crash_point("submission.after-store")
        devices = podstate.asked_devices(created)
        asked = ", ".join(f"{count} x {name}" for name, count in devices.items()) or "no devices"
        step = TraceStep(
            layer="api",
            reason="Accepted",
            message=f"accepted, asking for {asked}",
            at=accepted_at,
            duration_s=time.monotonic() - started,
            facts={
                "images": [item.image for item in created.spec.containers],
                "resources": devices,
                "scheduler": created.spec.scheduler_name,
            },
        )
        await tracerecorder.record(self.store, tracerecorder.reference(created), step)
        telemetry.crash_point("submission.after-record")
        return created

    async def replace(
        self, old: core.Pod, pod: core.Pod, *, grace_s: int | None, is_tenants: bool = False, most_devices: int = 0
    ) -> core.Pod:
        """See `port.ManifestLifecycle.replace`; a service that ends meanwhile leaves the rest to the next one."""
        admitted, rules = await self._admitted(pod, None, is_tenants=is_tenants, most_devices=most_devices)
        present = await self._present(old.metadata.namespace)
        _check(_Listed(tuple(item for item in present if item.metadata.uid != old.metadata.uid)), admitted, rules)

        spec = PodReplacementSpec(
            pod_uid=old.metadata.uid,
            pod=pod,
            grace_period_seconds=grace_s,
            is_tenants=is_tenants,
            most_devices=most_devices,
        )
        return await self.replacements.replace(old, spec)

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """See `port.ManifestLifecycle.leave_out`.

        Raises: Invalid: a container would run without the devices of a claim.
        """
        if refused := foreignrequest.claims_refusal(fields):
            raise refused
        return tuple(f"{path} is not carried out on one machine" for path in fields)

    async def judge(
        self,
        pods: Sequence[core.Pod],
        *,
        makes_namespace: bool = False,
        written: Sequence[Mapping[str, Any]] | None = None,
        most_devices: int = 0,
        claims: Sequence[str] = (),
    ) -> tuple[core.Pod, ...]:
        """See `port.Lifecycle.judge`; what is there is listed once for all of them."""
        places = dict.fromkeys(pod.metadata.namespace for pod in pods)
        present = await self._present(*places)
        _check_claims(_Listed(present), claims, places)
        seen = _Listed((*present, *_claims(claims, places)))
        classes, judged = (await self.store.list(PriorityClass)).items, []
        manifests: list[Mapping[str, Any] | None] = [None] * len(pods) if written is None else [*written]
        for pod, manifest in zip(pods, manifests, strict=True):
            await asyncio.sleep(0)  # a manifest has hundreds, and others ask meanwhile
            wanted = self._taken_up(pod)
            admitted, rules = _admitted(
                wanted, manifest, classes, is_tenants=makes_namespace, most_devices=most_devices
            )
            name = admitted.metadata.name
            if name and any(one.metadata.name == name for one in seen.list(core.Pod, admitted.metadata.namespace)):
                raise _taken(admitted, errors.Conflict(name, reason="AlreadyExists"))
            _check(seen, admitted, self._with_foreign(pod, rules))
            judged.append(admitted)
        return tuple(judged)

    async def _present(self, *places: str) -> tuple[Object, ...]:
        """Return what `_check` reads of namespaces."""
        here = [Selector(namespace=name) for name in places]
        within = [item for kind in _READ for one in here for item in (await self.store.list(kind, one)).items]
        everywhere = [item for kind in _READ_ALL for item in (await self.store.list(kind)).items]
        return (*everywhere, *within)

    async def end(self, pod: core.Pod, *, grace_s: int | None) -> None:
        """See `replacement.Submitter.end`."""
        if grace_s == 0:
            with contextlib.suppress(errors.NotFound):
                await self.stop(pod.metadata.name, pod.metadata.namespace, grace_s=0)
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await _delete(self.store, pod, grace_s)

    async def _admitted(
        self, pod: core.Pod, written: Mapping[str, Any] | None, *, is_tenants: bool, most_devices: int
    ) -> tuple[core.Pod, _Rules]:
        """Return the pod as it is stored, and what the transaction that stores it checks."""
        classes = (await self.store.list(PriorityClass)).items
        admitted, rules = _admitted(
            self._taken_up(pod), written, classes, is_tenants=is_tenants, most_devices=most_devices
        )
        return admitted, self._with_foreign(pod, rules)

    def _with_foreign(self, pod: core.Pod, rules: _Rules) -> _Rules:
        """Return the rules of a pod with what it asks of GPUs by means that are not read here."""
        return dataclasses.replace(rules, foreign=foreignrequest.refusal(pod, resource=self.here.resource))

    def _taken_up(self, pod: core.Pod) -> core.Pod:
        """Return a pod as this machine takes it up. Raises: Invalid: it would never be placed or run."""
        return machine.placed(pod, self.here)

    async def stop(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.stop`: the object stays. A pod that no node has yet ends at once.

        Raises: Conflict: others kept changing the pod.
        """

        # Written at the version read: where a scheduler binds the pod meanwhile, the next round asks its kubelet.
        def stopped(pod: core.Pod) -> core.Pod | None:
            if podstate.is_final(pod):
                return None
            return msgspec.structs.replace(pod, status=podstate.stopped(pod, grace_s))

        try:
            return await retry.change_status(self.store, core.Pod, name, stopped, namespace=namespace)
        except errors.NotFound as error:
            raise pods.not_found(name, namespace) from error

    async def remove(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.remove`.

        A grace of 0 kills at once, but the object still stays until its node says that the process is gone: removing it
        first would hand its devices to the next pod while they are in use. One that is being restarted stays away.
        """
        await self.replacements.drop(name, namespace)
        pod = await pods.find_pod(self.store, name, namespace)
        if grace_s == 0:
            await self.stop(name, namespace, grace_s=0)
        await _delete(self.store, pod, grace_s)
        return pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLifecycle:
    """A `port.ManifestLifecycle` over an API server, which admits and defaults by its own rules."""

    store: Store
    placement: subresource.Placement
    trial: subresource.Trial
    recreation: subresource.Recreation

    async def submit(
        self,
        pod: core.Pod,
        *,
        makes_namespace: bool = False,  # noqa: ARG002 namespaces are the administrator's
        written: Mapping[str, Any] | None = None,  # noqa: ARG002 its own policies judge
        most_devices: int = 0,  # noqa: ARG002 a ResourceQuota says it
        once: idempotency.Once | None = None,
    ) -> core.Pod:
        """See `port.Lifecycle.submit`; the server says where the namespace is missing.

        Raises: as there; RequestError (`NotOnCluster`): it asks for what only one machine's engine can do.
        """
        pod = await self._with_users(_for_cluster(pod))
        try:
            return await self.store.create(idempotency.carrying(pod, once) if once else pod)
        except errors.Conflict as error:
            raise _taken(pod, error) from error

    async def judge(
        self,
        pods: Sequence[core.Pod],
        *,
        makes_namespace: bool = False,  # noqa: ARG002 as `submit`
        written: Sequence[Mapping[str, Any]] | None = None,  # noqa: ARG002 as `submit`
        most_devices: int = 0,  # noqa: ARG002 as `submit`
        claims: Sequence[str] = (),  # noqa: ARG002 a server asks for a pod's claims when it is placed
    ) -> tuple[core.Pod, ...]:
        """See `port.Lifecycle.judge`: the server's own dry run of each, with its quotas and policies."""
        return tuple([await self._judged(await self._with_users(_for_cluster(pod))) for pod in pods])

    async def _judged(self, pod: core.Pod) -> core.Pod:
        try:
            return await self.trial.judge(pod)
        except errors.Conflict as error:
            raise _taken(pod, error) from error

    async def _with_users(self, pod: core.Pod) -> core.Pod:
        """Return a pod with a user namespace of its own, where its tenancy asks for that."""
        if pod.spec.host_users is not None or not baseline.is_namespace_name(pod.metadata.namespace):
            return pod
        try:
            place = await self.store.get(core.Namespace, pod.metadata.namespace)
        except errors.NotFound:
            return pod  # the server says so better
        if place.metadata.annotations.get(tenancies.HOST_USERS) != "false":
            return pod
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, host_users=False))

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """Refuse them: see `port.ManifestLifecycle.leave_out`."""
        if fields:
            message = f"Fairlead would send less than the manifest says, without {', '.join(fields)}"
            hint = "`kubectl apply -f FILE`, then `fairlead trace POD`; or leave them out"
            raise errors.RequestError(message, reason="FieldsUnread", hint=hint)
        return ()

    async def replace(
        self,
        old: core.Pod,
        pod: core.Pod,  # noqa: ARG002 the server's own manifest says more
        *,
        grace_s: int | None,
        is_tenants: bool = False,  # noqa: ARG002 its namespace says it
        most_devices: int = 0,  # noqa: ARG002 a ResourceQuota says it
    ) -> core.Pod:
        """See `port.ManifestLifecycle.replace`; a process killed between removal and creation does not carry it on."""
        return await self.recreation.recreate(old, grace_s=grace_s)

    async def stop(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.stop`: an eviction, which heeds disruption budgets; no record of the pod stays."""
        pod = await pods.find_pod(self.store, name, namespace)
        if not podstate.is_final(pod):
            await self.placement.evict(pod, grace_s=grace_s)
        return pod

    async def remove(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.remove`; a grace of 0 is sent as 1 s, so that the node still ends the process first."""
        pod = await pods.find_pod(self.store, name, namespace)
        await _delete(self.store, pod, grace_s)
        return pod


_ONE_MACHINE: Mapping[str, tuple[str, str]] = {
    "user": ("a user by name", "Kubernetes takes numbers: -u 1000:1000"),
    "no_network": ("no network", "a NetworkPolicy keeps a pod from the network"),
    "limits": ("limits of a process's resources", "the node's container runtime sets them"),
    "ttl_seconds_after_finished": (
        "removal after the end",
        "`fairlead rm NAME`, or a Job that has this field",
    ),
}


def _for_cluster(pod: core.Pod) -> core.Pod:
    """Return a pod as an API server takes it. Raises: Invalid; RequestError (`NotOnCluster`)."""
    admission.refuse_own_names(pod)
    secret.refuse_reserved(pod)
    _refuse_machine(pod)
    # A cluster computes it from the PriorityClass, and refuses a pod that says otherwise.
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, preemption_policy=""))


def _refuse_machine(pod: core.Pod) -> None:
    wanted = pod.spec.machine or core.MachineOptions()
    for option, (asked, hint) in _ONE_MACHINE.items():
        if getattr(wanted, option) != getattr(core.MachineOptions(), option):
            raise subresource.not_on_cluster(asked, hint)


async def _delete(store: Store, pod: core.Pod, grace_s: int | None) -> None:
    about = pod.metadata
    wait_s = None if grace_s is None else max(1, grace_s)
    await store.delete(core.Pod, about.name, about.namespace, grace_s=wait_s, uid=about.uid)


def _taken(pod: core.Pod, error: errors.Conflict) -> errors.Conflict:
    message = f'container "{pod.metadata.name}" already exists in namespace "{pod.metadata.namespace}"'
    hint = f"choose another name, or remove it: `fairlead rm {pod.metadata.name}`"
    return errors.Conflict(message, reason=error.reason, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A pod as it was written, whether the rules for tenants' pods bind it anywhere, and a limit of its namespace."""

    pod: Mapping[str, Any]
    bind: bool
    most_devices: int
    foreign: errors.Invalid | None = None
    """Why it is refused: it asks for GPUs by means that are not read here."""


_READ: Final[tuple[type[Object], ...]] = (core.PersistentVolumeClaim, core.ResourceQuota, core.Pod)
"""Kinds of the pod's namespace that `_check` reads."""
_READ_ALL: Final[tuple[type[Object], ...]] = (core.Namespace, Queue, Tenancy)
"""Kinds of no namespace that `_check` reads."""


class _Listed:
    """A `Reader` of objects that were listed beforehand: namespaces, and what is in some of them."""

    def __init__(self, items: Iterable[Object]) -> None:
        self._found: dict[tuple[type[Object], str], list[Object]] = {}
        for one in items:
            self._found.setdefault((type(one), one.metadata.namespace), []).append(one)

    def list(self, kind: type[T], namespace: str) -> tuple[T, ...]:
        """See `Reader.list`."""
        return tuple(one for one in self._found.get((kind, namespace), ()) if isinstance(one, kind))


def _check(seen: Reader, pod: core.Pod, rules: _Rules) -> None:
    """Refuse a pod from inside the transaction that stores it: a tenant's that breaks a rule, or one beyond a quota."""
    namespace = pod.metadata.namespace
    place = _find_namespace(seen, namespace)
    tenancy = baseline.find_owner(place, seen.list(Tenancy, "") if baseline.UID in place.labels else ())
    if tenancy is not None and (refused := baseline.refusal(tenancy)):
        raise refused
    is_tenants = rules.bind or tenantrule.TENANCY in place.labels
    # On one machine folders are root's to mount: users and accounts are refused them by `userrule`.
    listed = {tenantrule.ALLOWED_PATHS: "/", **place.annotations}
    problems = tenantrule.problems(rules.pod, listed) if is_tenants else ()
    if problems:
        name = pod.metadata.name or pod.metadata.generate_name
        raise errors.Denied(
            f'Pod "{name}" is forbidden in the tenant\'s namespace "{namespace}": {"; ".join(problems)}',
            reason="TenantPodForbidden",
            hint="leave it out, or have the administrator run it in a namespace that is not a tenant's",
        )
    if rules.foreign is not None:
        raise rules.foreign
    _check_queue(seen, pod)
    if problem := volume.missing(pod.spec, seen.list(core.PersistentVolumeClaim, namespace)):
        hint = "`fairlead volume create NAME` makes it; `run -v NAME:/PATH` does as well"
        raise errors.Invalid(f'{problem} in namespace "{namespace}"', reason="VolumeNotFound", hint=hint)
    quotas = seen.list(core.ResourceQuota, namespace)
    standing = userrule.quota(pod, rules.most_devices, quotas)
    if counted := [*quotas, *([standing] if standing else [])]:
        quota.check(pod, counted, seen.list(core.Pod, namespace))


def _check_queue(seen: Reader, pod: core.Pod) -> None:
    """Refuse a pod of a queue that it may not be in: it would wait until one is made. Raises: Invalid."""
    if not (named := ledger.named_queue(pod)):
        return
    found, namespace = list[tree.Spec](), pod.metadata.namespace
    for item in seen.list(Queue, ""):
        with contextlib.suppress(errors.Invalid):  # that queue's own fault, which its status says
            found.append(tree.spec_of(item))
    if (problem := tree.Tree(found).find(namespace, named)[1]) and named not in {one.name for one in found}:
        problem = f'queue "{errors.readable(named)}" is not there'
    if problem:
        usable = [one.name for one in found if not one.namespaces or namespace in one.namespaces]
        hint = f"its namespace may use {', '.join(usable)}" if usable else "leave it out: no queue is kept here"
        raise errors.Invalid(problem, reason="QueueUnknown", hint=hint)


def _admitted(
    pod: core.Pod,
    written: Mapping[str, Any] | None,
    classes: Sequence[PriorityClass],
    *,
    is_tenants: bool,
    most_devices: int,
) -> tuple[core.Pod, _Rules]:
    """Return the pod as it is stored, and what is checked of it. Args: classes: all that there are."""
    admitted = admission.admit(priority.resolve(_with_local_claims(pod), classes))
    rules = _Rules(
        pod=msgspec.to_builtins(pod) if written is None else written,
        # A request by tenancy comes from a tenant, also in a namespace that a quota made before.
        bind=is_tenants,
        most_devices=most_devices,
    )
    return _marked(admitted) if is_tenants else admitted, rules


def _check_claims(seen: _Listed, made: Sequence[str], places: Iterable[str]) -> None:
    """Refuse volumes that would be made beside pods as the store would. Raises: Denied (`Forbidden`)."""
    for place in places:
        here = {one.metadata.name for one in seen.list(core.PersistentVolumeClaim, place)}
        quotas = seen.list(core.ResourceQuota, place)
        for name in made:
            if name not in here:
                quota.check_claims(name, quotas, len(here))
                here.add(name)


def _claims(made: Sequence[str], places: Iterable[str]) -> Iterator[core.PersistentVolumeClaim]:
    """Yield volumes of these names in each namespace, as if they were there."""
    for place in places:
        for name in made:
            yield core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name=name, namespace=place))


def _with_local_claims(pod: core.Pod) -> core.Pod:
    """Return a pod whose claims the scheduler knows as folders of this machine."""
    options = pod.spec.machine or core.MachineOptions()
    if options.has_local_claims == bool(volume.claims(pod.spec)):
        return pod
    here = msgspec.structs.replace(options, has_local_claims=not options.has_local_claims)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, machine=here))


def _marked(pod: core.Pod) -> core.Pod:
    """Return a pod that its node's kubelet knows as a tenant's."""
    about = pod.metadata
    annotations = {**about.annotations, names.TENANT: about.namespace}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(about, annotations=annotations))


def _find_namespace(seen: Reader, name: str) -> meta.ObjectMeta:
    """Return the namespace's metadata; its name alone where there is none."""
    found = (item.metadata for item in seen.list(core.Namespace, "") if item.metadata.name == name)
    return next(found, meta.ObjectMeta(name=name))
