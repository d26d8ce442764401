"""Keeps the objects that people configure and multiply pods by, as `kubectl apply` does, on one machine.

What is written replaces what stands there, so that a field that is taken out of a manifest is gone; identity, keepers
and status stay, and the number of replicas where a manifest has none. A template is judged as its pods will be, in the
caller's place, and says whose they are: a controller makes them later, when the caller is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import admission, machine
from fairlead.plan.pod.values import configmap
from fairlead.plan.workload import deployment, podset, statefulset, templated, validate
from fairlead.serve.backend import place as places
from fairlead.serve.backend.containers import checks
from fairlead.serve.backend.place import ASK_ROOT, Place
from fairlead.serve.backend.port import Workload
from fairlead.serve.backend.tenancy import namespaces
from fairlead.store import retry
from fairlead.store.port import AdmittingStore, Selector
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.coordination import PriorityClass
from fairlead.wire.kubernetes.devicechange import PodReplacementSpec
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import Job
from fairlead.wire.kubernetes.workloads.service import Service

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"
MOST_DEVICES: Final = f"{names.OWN}/most-devices"
"""Annotation of a workload: how many devices its maker may have at once."""
MOST: Final = 500
"""Objects of a kind in one namespace: a tenant's are bounded by no quota."""
RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
_ROUNDS: Final = 5
_NODE_PORTS: Final = range(30000, 32768)
_FIXED: Final[Mapping[type, tuple[str, ...]]] = {
    Deployment: ("selector",),
    StatefulSet: ("selector", "service_name", "volume_claim_templates", "pod_management_policy"),
    Job: ("template", "completions", "completion_mode"),
}
"""Fields that never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWorkloads:
    """A `port.Workloads` in the machine's store."""

    store: AdmittingStore
    here: machine.Here

    async def judge(self, item: Workload, place: Place, written: Mapping[str, Any]) -> None:
        """See `port.Workloads.judge`."""
        await self._judged(item, place, written)

    async def keep(self, item: Workload, place: Place, written: Mapping[str, Any]) -> str:
        """See `port.Workloads.keep`."""
        wanted = await self._judged(item, place, written)
        await namespaces.ensure(self.store, place.namespace, labels=place.labels)
        for left in reversed(range(_ROUNDS)):
            try:
                return await self._write(wanted)
            except errors.Conflict:  # another request for it was faster
                if not left:
                    raise
        raise AssertionError("the last round returns or raises")

    async def _judged(self, item: Workload, place: Place, written: Mapping[str, Any]) -> Workload:
        """Return an object as it is to be stored. Raises: Invalid, Denied."""
        admission.refuse_own_names(item)
        if place.is_tenants and (item.metadata.finalizers or item.metadata.owner_references):
            message = f'{item.KIND} "{item.metadata.name}" has finalizers or ownerReferences, which would keep it'
            raise errors.Denied(message, reason="UserPodForbidden", hint=f"leave them out, or {ASK_ROOT}")
        if place.is_tenants and isinstance(item, PodDisruptionBudget):
            # No pod is ended past its budget: one's own would be a way around every queue's share.
            message = "a PodDisruptionBudget keeps pods from being ended for others, which a tenant may not decide"
            raise errors.Denied(message, reason="UserPodForbidden", hint=f"leave it out, or {ASK_ROOT}")
        about = msgspec.structs.replace(item.metadata, namespace=place.namespace)
        placed = msgspec.structs.replace(item, metadata=about)
        if isinstance(placed, core.ConfigMap):
            configmap.check(placed)
            return placed
        validate.check(placed)
        if (pod := templated.pod_of(placed)) is None:
            return placed
        admission.refuse_own_names(pod)
        asked = place.submission(pod, templated.written_pod(written))
        classes = (await self.store.list(PriorityClass)).items
        seen = [one for kind in checks.READ_ALL for one in (await self.store.list(kind)).items]
        whole = asked
        if isinstance(placed, StatefulSet):
            spec = statefulset.with_claims(placed, asked.pod.spec, f"{pod.metadata.name}-0")
            whole = dataclasses.replace(asked, pod=msgspec.structs.replace(asked.pod, spec=spec))
        checks.check_template(checks.Listed(seen), checks.admit(whole, classes, self.here))
        kept: Workload = templated.with_template(_marked(placed, place), lambda _pod: asked.pod)
        return kept

    async def _write(self, wanted: Workload) -> str:
        name, namespace = wanted.metadata.name, wanted.metadata.namespace
        old: Workload | None = None
        with contextlib.suppress(errors.NotFound):
            old = await self.store.get(type(wanted), name, namespace)
        if isinstance(wanted, Service):
            wanted = await self._with_ports(wanted, old)
        if old is None:
            present = (await self.store.list(type(wanted), Selector(namespace=namespace))).items
            if len(present) >= MOST:
                message = f'namespace "{namespace}" has {len(present)} {type(wanted).PLURAL}, and no more are kept'
                raise errors.Denied(message, reason="TooManyObjects", hint=f"`fairlead delete {wanted.PLURAL} NAME`")
            await self.store.create(wanted)
            return CREATED
        new = over(old, wanted)
        if new == old:
            return UNCHANGED
        await self.store.update(new)
        return CONFIGURED

    async def _with_ports(self, wanted: Service, old: Workload | None) -> Service:
        """Return a Service with a port of the machine for each of its own, where its type asks for that."""
        if (wanted.spec.type or "ClusterIP") == "ClusterIP":
            return wanted
        others = [one for one in (await self.store.list(Service)).items if _place_of(one) != _place_of(wanted)]
        taken = {port.node_port: one for one in others for port in one.spec.ports if port.node_port}
        had = {port.port: port.node_port for port in old.spec.ports} if isinstance(old, Service) else {}
        found, mine = [], {port.node_port for port in wanted.spec.ports}
        for port in wanted.spec.ports:
            number = port.node_port or had.get(port.port, 0)
            if not number:
                number = next(one for one in _NODE_PORTS if one not in taken and one not in mine)
            if number in taken:
                message = f'Service "{wanted.metadata.name}" is invalid: spec.ports: nodePort {number} is allocated'
                raise errors.Invalid(message, reason="WorkloadInvalid", hint="leave it out, or take another")
            mine.add(number)
            found.append(msgspec.structs.replace(port, node_port=number))
        return msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, ports=tuple(found)))

    async def remove(self, kind: type[Workload], name: str, namespace: str) -> None:
        """See `port.Workloads.remove`."""
        try:
            await self.store.delete(kind, name, namespace)
        except errors.NotFound as error:
            raise not_found(kind, name) from error

    async def scale(self, kind: type[Workload], name: str, namespace: str, replicas: int) -> Workload:
        """See `port.Workloads.scale`."""
        _require(kind, (Deployment, StatefulSet), "scaled")

        def scaled(item: Workload) -> Workload:
            assert isinstance(item, Deployment | StatefulSet)  # noqa: S101 the kind was looked at
            spec = msgspec.structs.replace(item.spec, replicas=replicas)
            changed = msgspec.structs.replace(item, spec=spec)
            validate.check(changed)
            return changed

        return await self._changed(kind, name, namespace, scaled)

    async def restart(self, kind: type[Workload], name: str, namespace: str) -> Workload:
        """See `port.Workloads.restart`."""
        _require(kind, (Deployment, StatefulSet), "restarted")

        def again(item: Workload) -> Workload:
            assert isinstance(item, Deployment | StatefulSet)  # noqa: S101 the kind was looked at

            def stamped(pod: core.Pod) -> core.Pod:
                marks = {**pod.metadata.annotations, RESTARTED: meta.now()}
                return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=marks))

            return templated.with_template(item, stamped)

        return await self._changed(kind, name, namespace, again)

    async def pause(self, kind: type[Workload], name: str, namespace: str, *, is_paused: bool) -> Workload:
        """See `port.Workloads.pause`."""
        _require(kind, (Deployment,), "paused")

        def changed(item: Workload) -> Workload:
            assert isinstance(item, Deployment)  # noqa: S101 the kind was looked at
            return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, paused=is_paused))

        return await self._changed(kind, name, namespace, changed)

    async def undo(self, kind: type[Workload], name: str, namespace: str, revision: int) -> Workload:
        """See `port.Workloads.undo`."""
        _require(kind, (Deployment,), "rolled back")
        listed = (await self.store.list(ReplicaSet, Selector(namespace=namespace))).items

        def before(item: Workload) -> Workload:
            assert isinstance(item, Deployment)  # noqa: S101 the kind was looked at
            if item.spec.paused:
                message = f'deployment "{item.metadata.name}" is paused, and not rolled back'
                hint = f"`fairlead rollout resume deployment/{item.metadata.name}` first"
                raise errors.Conflict(message, reason="DeploymentPaused", hint=hint)
            owned = [one for one in listed if podset.owned_by(item, one)]
            template = deployment.template_of_revision(item, owned, revision)
            return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, template=template))

        return await self._changed(kind, name, namespace, before)

    async def _changed(self, kind: type[Workload], name: str, namespace: str, change: Any) -> Workload:
        try:
            found: Workload = await retry.change(self.store, kind, name, change, namespace=namespace)
        except errors.NotFound as error:
            raise not_found(kind, name) from error
        return found


def _require(kind: type[Workload], allowed: tuple[type[meta.Object], ...], what: str) -> None:
    """Refuse a kind that something is not done to. Raises: Invalid (`WorkloadInvalid`)."""
    if kind not in allowed:
        message = f"a {kind.KIND} is not {what}"
        hint = f"{' and '.join(one.PLURAL for one in allowed)} are"
        raise errors.Invalid(message, reason="WorkloadInvalid", hint=hint)


def not_found(kind: type[meta.Object], name: str) -> errors.NotFound:
    """Return the error for an object that is not there, in kubectl's words."""
    group = kind.API_VERSION.partition("/")[0] if "/" in kind.API_VERSION else ""
    shown = f"{kind.PLURAL}.{group}" if group else kind.PLURAL
    return errors.NotFound(
        f'{shown} "{errors.readable(name[:260])}" not found',
        reason="NotFound",
        hint=f"`fairlead get {kind.PLURAL}` lists them",
    )


def _place_of(item: meta.Object) -> tuple[str, str]:
    """Return namespace and name."""
    return item.metadata.namespace, item.metadata.name


def submission(pod: core.Pod, owner: meta.Object) -> places.Submission:
    """Return a pod that a controller asks for, in the place of who made its owner."""
    marks = owner.metadata.annotations
    most = marks.get(MOST_DEVICES, "")
    asked = places.recorded(
        PodReplacementSpec(
            pod_uid="",
            pod=pod,
            is_tenants=names.TENANT in marks,
            most_devices=int(most) if most.isdecimal() else 0,
            account=marks.get(names.ACCOUNT, ""),
        )
    )
    return dataclasses.replace(asked, is_workloads=True)


def _marked(item: Workload, place: Place) -> Any:
    """Return a workload that says whose its pods are."""
    marks = {names.TENANT: place.namespace, MOST_DEVICES: str(place.most_devices)} if place.is_tenants else {}
    marks |= {names.ACCOUNT: place.account} if place.account else {}
    if not marks:
        return item
    about = msgspec.structs.replace(item.metadata, annotations={**item.metadata.annotations, **marks})
    return msgspec.structs.replace(item, metadata=about)


def over(old: Any, wanted: Workload) -> Workload:
    """Return an object in the place of one that is there. Raises: Invalid: a field that never changes does."""
    name = wanted.metadata.name
    if isinstance(old, core.ConfigMap) and isinstance(wanted, core.ConfigMap):
        if old.immutable and (old.data, old.binary_data) != (wanted.data, wanted.binary_data):
            message = f'ConfigMap "{name}" is invalid: data: Forbidden: field is immutable when `immutable` is set'
            raise errors.Invalid(message, reason="ConfigMapInvalid", hint="delete it, then create it again")
    else:
        fixed = [field for field in _FIXED.get(type(wanted), ()) if _field(old, field) != _field(wanted, field)]
        if fixed:
            shown = ", ".join(f"spec.{field.partition('_')[0]}" for field in fixed)
            message = f'{wanted.KIND} "{name}" is invalid: {shown}: Invalid value: field is immutable'
            raise errors.Invalid(
                message, reason="WorkloadInvalid", hint=f"`fairlead delete {wanted.KIND.lower()} {name}`"
            )
    about = msgspec.structs.replace(
        old.metadata,
        labels={**old.metadata.labels, **wanted.metadata.labels},
        annotations={**old.metadata.annotations, **wanted.metadata.annotations},
    )
    changed = msgspec.structs.replace(wanted, metadata=about)
    if isinstance(changed, core.ConfigMap) or isinstance(old, core.ConfigMap):
        return changed
    kept: Any = msgspec.structs.replace(changed, status=old.status)
    if isinstance(kept, Deployment | StatefulSet) and kept.spec.replicas is None:
        spec = msgspec.structs.replace(kept.spec, replicas=_field(old, "replicas"))
        kept = msgspec.structs.replace(kept, spec=spec)
    result: Workload = _with_restart(old, kept)
    return result


def _with_restart(old: Workload, item: Any) -> Any:
    """Keep the time of a restart, which no manifest has: without it every `apply` would restart the pods again."""
    had = templated.pod_of(old) if not isinstance(old, core.ConfigMap) else None
    at = had.metadata.annotations.get(RESTARTED) if had is not None else None
    if at is None or not isinstance(item, Deployment | StatefulSet):
        return item

    def stamped(pod: core.Pod) -> core.Pod:
        marks = {**pod.metadata.annotations, RESTARTED: at}
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=marks))

    return templated.with_template(item, stamped)


def _field(item: Workload, name: str) -> object:
    return getattr(getattr(item, "spec", None), name, None)
