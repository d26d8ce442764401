"""Submits, stops and removes pods: on a machine by requests that its kubelet knows, on a cluster by its API server.

Nothing here starts or stops a process: the node's kubelet does, when it sees the object change.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.model.container import isolation
from fairlead.plan import trace
from fairlead.plan.pod import admission, machine, podstate, tenantrule
from fairlead.plan.sandbox import choice
from fairlead.plan.tenancy import baseline, secret
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.containers import checks, pods
from fairlead.serve.backend.containers.replacement import Replacements
from fairlead.serve.backend.place import Submission
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store import retry, subresource, tracerecorder
from fairlead.store.port import AdmittingStore, Selector, Store
from fairlead.wire.fairlead import tenancy as tenancies
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, workload
from fairlead.wire.kubernetes.coordination import PriorityClass
from fairlead.wire.kubernetes.devicechange import PodReplacementSpec
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)
_ANYWHERE: Final = machine.Here()


async def _no_gvisor(_pod: core.Pod) -> errors.FairleadError | None:
    message = "no engine was asked whether it has gVisor"
    return errors.Unavailable(message, reason="IsolationUnavailable", hint="`fairlead up` asks it")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLifecycle:
    """A `port.ManifestLifecycle` whose kubelet knows our request for a stop and whose admission is ours."""

    store: AdmittingStore
    here: machine.Here = _ANYWHERE
    gvisor: Callable[[core.Pod], Awaitable[errors.FairleadError | None]] = _no_gvisor
    """Says why a pod cannot run on gVisor here; None: it can."""
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

    async def submit(self, asked: Submission, *, once: idempotency.Once | None = None) -> core.Pod:
        """See `port.Lifecycle.submit`; records that the pod was accepted."""
        if asked.place.makes_namespace:
            await namespaces.ensure(self.store, asked.place.namespace, labels=asked.place.labels)
        telemetry.crash_point("submission.before-store")
        started = time.monotonic()
        admitted = await self._admitted(asked)
        # Taken before the pod is visible: the scheduler may have bound it before `create` returns.
        accepted_at = time.time()
        try:
            created = await self.store.create_checked(
                admitted.pod, lambda seen: checks.check(seen, admitted), beside=once.record if once else None
            )
        except errors.Conflict as error:
            raise pods.taken(asked.pod.metadata.name, asked.pod.metadata.namespace, error.reason) from error
        telemetry.crash_point("submission.after-store")
        step = trace.accepted(created, at=accepted_at, duration_s=time.monotonic() - started)
        await tracerecorder.record(self.store, tracerecorder.reference(created), step)
        telemetry.crash_point("submission.after-record")
        return created

    async def replace(self, old: core.Pod, asked: Submission, *, grace_s: int | None) -> core.Pod:
        """See `port.ManifestLifecycle.replace`; a service that ends meanwhile leaves the rest to the next one."""
        admitted = await self._admitted(asked)
        present = await self._present(old.metadata.namespace)
        others = tuple(item for item in present if item.metadata.uid != old.metadata.uid)
        checks.check(checks.Listed(others), admitted)

        spec = PodReplacementSpec(
            pod_uid=old.metadata.uid,
            pod=asked.pod,
            grace_period_seconds=grace_s,
            is_tenants=asked.place.is_tenants,
            most_devices=asked.place.most_devices,
            account=asked.place.account,
        )
        return await self.replacements.replace(old, spec)

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """See `port.ManifestLifecycle.leave_out`."""
        return tuple(f"{path} is not carried out on one machine" for path in fields)

    async def judge(self, asked: Sequence[Submission], *, claims: Sequence[str] = ()) -> tuple[core.Pod, ...]:
        """See `port.Lifecycle.judge`; what is there is listed once for all of them."""
        spaces = dict.fromkeys(one.place.namespace for one in asked)
        present = await self._present(*spaces)
        checks.check_claims(checks.Listed(present), claims, spaces)
        seen = checks.Listed((*present, *checks.claims_named(claims, spaces)))
        classes, judged = (await self.store.list(PriorityClass)).items, []
        for one in asked:
            await asyncio.sleep(0)  # a manifest has hundreds, and others ask meanwhile
            admitted = await self._isolated(checks.admit(one, classes, self.here), seen.list(Tenancy, ""))
            about = admitted.pod.metadata
            if about.name and any(here.metadata.name == about.name for here in seen.list(core.Pod, about.namespace)):
                raise pods.taken(about.name, about.namespace)
            checks.check(seen, admitted)
            judged.append(admitted.pod)
        return tuple(judged)

    async def _present(self, *spaces: str) -> tuple[Object, ...]:
        """Return what the checks read of namespaces."""
        here = [Selector(namespace=name) for name in spaces]
        within = [item for kind in checks.READ for one in here for item in (await self.store.list(kind, one)).items]
        everywhere = [item for kind in checks.READ_ALL for item in (await self.store.list(kind)).items]
        return (*everywhere, *within)

    async def end(self, pod: core.Pod, *, grace_s: int | None) -> None:
        """See `replacement.Submitter.end`."""
        if grace_s == 0:
            with contextlib.suppress(errors.NotFound):
                await self.stop(pod.metadata.name, pod.metadata.namespace, grace_s=0)
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await _delete(self.store, pod, grace_s)

    async def _admitted(self, asked: Submission) -> checks.Admitted:
        """Return the pod as it is stored, for the checks of the transaction that stores it."""
        admitted = checks.admit(asked, (await self.store.list(PriorityClass)).items, self.here)
        is_tenancys = baseline.is_namespace_name(admitted.pod.metadata.namespace)
        return await self._isolated(admitted, (await self.store.list(Tenancy)).items if is_tenancys else ())

    async def _isolated(self, admitted: checks.Admitted, tenancies: Sequence[Tenancy]) -> checks.Admitted:
        """Return a pod with its tenancy's isolation.

        Raises: Denied (`IsolationBound`); Unavailable: this machine cannot give the isolation, and what it lacks.
        """
        pod = admitted.pod
        if baseline.is_namespace_name(pod.metadata.namespace):
            found = baseline.find_by_namespace(pod.metadata.namespace, tenancies)
            pod = pod if found is None else choice.bound(pod, found.spec.isolation, found.metadata.name)
        if choice.on_one_machine(pod) and (refusal := await self.gvisor(pod)) is not None:
            raise refusal
        return dataclasses.replace(admitted, pod=pod)

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

    async def submit(self, asked: Submission, *, once: idempotency.Once | None = None) -> core.Pod:
        """See `port.Lifecycle.submit`; namespaces, quotas and policies are the server's, which says what it lacks.

        Raises: as there; RequestError (`NotOnCluster`): it asks for what only one machine's engine can do.
        """
        pod = await self._sized(await self._in_its_tenancy(_for_cluster(asked.pod)))
        try:
            return await self.store.create(idempotency.carrying(pod, once) if once else pod)
        except errors.Conflict as error:
            raise pods.taken(pod.metadata.name, pod.metadata.namespace, error.reason) from error
        except errors.FairleadError as error:
            raise _with_class(pod, error) from error

    async def judge(
        self,
        asked: Sequence[Submission],
        *,
        claims: Sequence[str] = (),  # noqa: ARG002 a server asks for a pod's claims when it is placed
    ) -> tuple[core.Pod, ...]:
        """See `port.Lifecycle.judge`: the server's own dry run of each, with its quotas and policies."""
        return tuple(
            [await self._judged(await self._sized(await self._in_its_tenancy(_for_cluster(one.pod)))) for one in asked]
        )

    async def _judged(self, pod: core.Pod) -> core.Pod:
        try:
            return await self.trial.judge(pod)
        except errors.Conflict as error:
            raise pods.taken(pod.metadata.name, pod.metadata.namespace, error.reason) from error
        except errors.FairleadError as error:
            raise _with_class(pod, error) from error

    async def _sized(self, pod: core.Pod) -> core.Pod:
        """Return a pod for a virtual machine with the class of its size, where the cluster has classes by size."""
        if pod.spec.runtime_class_name != isolation.KATA_CLASS:
            return pod
        try:
            classes = (await self.store.list(workload.RuntimeClass)).items
        except errors.Denied:
            return pod  # whose rights these are may not list them
        return choice.sized(pod, [one.metadata.name for one in classes])

    async def _in_its_tenancy(self, asked: core.Pod) -> core.Pod:
        """Return a pod with the isolation and the user namespace that its tenancy demands.

        Raises: Denied (`IsolationBound`).
        """
        pod = choice.spoken(asked)
        if not baseline.is_namespace_name(pod.metadata.namespace):
            return pod
        try:
            place = await self.store.get(core.Namespace, pod.metadata.namespace)
        except errors.NotFound:
            return pod  # the server says so better
        about = place.metadata
        demanded = about.annotations.get(tenancies.ISOLATION, "")
        pod = choice.bound(asked, demanded, about.labels.get(tenantrule.TENANCY, about.name))
        pod = choice.spoken(pod)
        if pod.spec.host_users is not None or about.annotations.get(tenancies.HOST_USERS) != "false":
            return pod
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, host_users=False))

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """Refuse them: see `port.ManifestLifecycle.leave_out`. A RuntimeClass is sent as it is."""
        fields = [one for one in fields if not one.endswith("spec.runtimeClassName")]
        if fields:
            message = f"Fairlead would send less than the manifest says, without {', '.join(fields)}"
            hint = "`kubectl apply -f FILE`, then `fairlead trace POD`; or leave them out"
            raise errors.RequestError(message, reason="FieldsUnread", hint=hint)
        return ()

    async def replace(
        self,
        old: core.Pod,
        asked: Submission,  # noqa: ARG002 the server's own manifest says more
        *,
        grace_s: int | None,
    ) -> core.Pod:
        """See `port.ManifestLifecycle.replace`; a process killed between removal and creation does not carry it on."""
        return await self.recreation.recreate(old, grace_s=grace_s)

    async def stop(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.stop`: an eviction, which respects disruption budgets; no record of the pod stays."""
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
    "groups": ("groups by name", "Kubernetes takes numbers: --group-add 44"),
    "no_network": ("no network", "a NetworkPolicy keeps a pod from the network"),
    "devices": ("devices by their CDI names", "a cluster hands devices out by claims: --claim NAME"),
    "reservation": ("a reservation", "reservations are of one machine: leave --reservation out"),
    "limits": ("limits of a process's resources", "the node's container runtime sets them"),
    "ttl_seconds_after_finished": (
        "removal after the end",
        "`fairlead rm NAME`, or a Job that has this field",
    ),
}


_NO_CLASS: Final = re.compile(r'RuntimeClass[^"]{0,80}"[^"]{1,253}" not found', re.IGNORECASE)


def _with_class(pod: core.Pod, error: errors.FairleadError) -> errors.FairleadError:
    """Return a server's refusal, and what the cluster lacks where it has no RuntimeClass for the isolation."""
    name = pod.spec.runtime_class_name
    word = isolation.of_class(name)
    if word not in isolation.WORDS or not _NO_CLASS.search(error.message):
        return error
    message = f'isolation {word} needs the RuntimeClass "{name}", which this cluster has not'
    return errors.Unavailable(message, reason="IsolationUnavailable", hint=choice.CLASS_HINTS[word])


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
