"""Checks a pod in the step that stores it on one machine: rules that what is there decides, in a table.

`admit` defaults a submission, without a look at anything stored but priority classes; `check` runs the table over what
the transaction sees, so that no two requests pass a quota together. On a cluster the API server does both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors
from fairlead.plan.fabric import size
from fairlead.plan.gpu.allocation import foreignrequest
from fairlead.plan.pod import admission, device, machine, priority, quota, tenantrule, userrule, volume
from fairlead.plan.reservation import use
from fairlead.plan.sandbox import choice
from fairlead.plan.schedule.fairshare import ledger, tree
from fairlead.plan.schedule.reservation import reservations
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.place import Place, Submission
from fairlead.store.port import Reader
from fairlead.wire.fairlead.reservation import Reservation
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.coordination import PriorityClass
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.scheduling.queue import Queue

T = TypeVar("T", bound=Object)

READ: Final[tuple[type[Object], ...]] = (core.PersistentVolumeClaim, core.ResourceQuota, core.Pod, Reservation)
"""Kinds of the pod's namespace that checks read."""
READ_ALL: Final[tuple[type[Object], ...]] = (core.Namespace, core.Node, Queue, Tenancy)
"""Kinds of no namespace that checks read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A pod as it is to be stored."""

    pod: core.Pod
    place: Place
    written: Mapping[str, Any]
    """As it came, for rules that judge what was written."""
    foreign: errors.Invalid | None
    """Why it is refused: it asks for GPUs by means that are not read here."""
    resource: str = "nvidia.com/gpu"
    """Whole GPUs of this machine."""
    devices: tuple[str, ...] = ()
    """CDI devices that people may ask for by name."""
    at: float = field(default_factory=time.time)
    """When it was asked for, Unix seconds."""


class Listed:
    """A `Reader` of objects that were listed beforehand: namespaces, and what is in some of them."""

    def __init__(self, items: Iterable[Object]) -> None:
        self._found: dict[tuple[type[Object], str], list[Object]] = {}
        for one in items:
            self._found.setdefault((type(one), one.metadata.namespace), []).append(one)

    def list(self, kind: type[T], namespace: str) -> tuple[T, ...]:
        """See `Reader.list`."""
        return tuple(one for one in self._found.get((kind, namespace), ()) if isinstance(one, kind))


def admit(asked: Submission, classes: Sequence[PriorityClass], here: machine.Here) -> Admitted:
    """Return a pod as this machine takes it up and stores it.

    Args:    classes: all that there are.   here: the machine.
    Raises:  Invalid: a rule of Kubernetes is broken, or it would never be placed or run here.
    """
    pod = machine.placed(asked.pod, here)
    if asked.is_workloads:
        kept = msgspec.structs.replace(pod.metadata, finalizers=asked.pod.metadata.finalizers)
        pod = msgspec.structs.replace(pod, metadata=kept)
    admitted = admission.admit(priority.resolve(_with_local_claims(pod), classes))
    return Admitted(
        pod=_marked(admitted, asked.place),
        place=asked.place,
        written=msgspec.to_builtins(pod) if asked.written is None else asked.written,
        foreign=foreignrequest.refusal(asked.pod, resource=here.resource),
        resource=here.resource,
        devices=here.devices,
    )


def check(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod from inside the transaction that stores it. Raises: Denied, Invalid: the first check that fails."""
    for one in CHECKS:
        one(seen, asked)


def _tenancy_accepts(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod of a tenancy that is suspended, is being deleted or is gone."""
    home = _find_namespace(seen, asked.place.namespace)
    tenancy = baseline.find_owner(home, seen.list(Tenancy, "") if baseline.UID in home.labels else ())
    if tenancy is not None and (refused := baseline.refusal(tenancy)):
        raise refused


def _isolated_enough(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod with another isolation than its tenancy's, as the tenancy stands now."""
    home = _find_namespace(seen, asked.place.namespace)
    tenancy = baseline.find_owner(home, seen.list(Tenancy, "") if baseline.UID in home.labels else ())
    if tenancy is not None and choice.bound(asked.pod, tenancy.spec.isolation, tenancy.metadata.name) != asked.pod:
        message = f'the isolation of tenancy "{tenancy.metadata.name}" changed meanwhile'
        raise errors.Conflict(message, reason="IsolationChanged", hint="send the request again")


def _tenants_may(seen: Reader, asked: Admitted) -> None:
    """Refuse what the rules for tenants' pods do not list, in a tenant's namespace or from a tenant."""
    home = _find_namespace(seen, asked.place.namespace)
    if not asked.place.is_tenants and tenantrule.TENANCY not in home.labels:
        return
    # On one machine folders are root's to mount: users and accounts are refused them by their place's rule.
    listed = {tenantrule.ALLOWED_PATHS: "/", **home.annotations}
    if problems := tenantrule.problems(asked.written, listed):
        name = asked.pod.metadata.name or asked.pod.metadata.generate_name
        raise errors.Denied(
            f'Pod "{name}" is forbidden in the tenant\'s namespace "{home.name}": {"; ".join(problems)}',
            reason="TenantPodForbidden",
            hint="leave it out, or have the administrator run it in a namespace that is not a tenant's",
        )


def _devices_are_listed(seen: Reader, asked: Admitted) -> None:
    """Refuse a tenant devices by name that the setting does not list."""
    wanted = asked.pod.spec.machine
    if wanted is None or not wanted.devices:
        return
    is_tenants = asked.place.is_tenants or tenantrule.TENANCY in _find_namespace(seen, asked.place.namespace).labels
    if is_tenants and (refused := device.refusal(wanted, asked.devices)) is not None:
        raise refused


def _asks_plainly(_seen: Reader, asked: Admitted) -> None:
    """Refuse a pod that asks for GPUs by means that are not read here."""
    if asked.foreign is not None:
        raise asked.foreign


def _slot_has_a_size(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod that asks for so many GPUs at once as no NVLink partition here has: it would wait for ever."""
    spec = asked.pod.spec
    names = {name for one in (*spec.init_containers, *spec.containers) for name in one.resources.limits}
    offered = (name for node in seen.list(core.Node, "") for name in node.status.capacity)
    if (refused := size.find_refusal(sorted(names), offered)) is not None:
        raise refused


def _queue_is_there(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod of a queue that it may not be in: it would wait until one is made."""
    if not (named := ledger.named_queue(asked.pod)):
        return
    found, namespace = list[tree.Spec](), asked.place.namespace
    for item in seen.list(Queue, ""):
        with contextlib.suppress(errors.Invalid):  # that queue's own fault, which its status says
            found.append(tree.spec_of(item))
    if (problem := tree.Tree(found).find(namespace, named)[1]) and named not in {one.name for one in found}:
        problem = f'queue "{errors.readable(named)}" is not there'
    if problem:
        usable = [one.name for one in found if not one.namespaces or namespace in one.namespaces]
        hint = f"its namespace may use {', '.join(usable)}" if usable else "leave it out: no queue is kept here"
        raise errors.Invalid(problem, reason="QueueUnknown", hint=hint)


def _volumes_are_there(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod that mounts a volume that is not there: it would wait until one is made."""
    namespace = asked.place.namespace
    if problem := volume.missing(asked.pod.spec, seen.list(core.PersistentVolumeClaim, namespace)):
        hint = "`fairlead volume create NAME` makes it; `run -v NAME:/PATH` does as well"
        raise errors.Invalid(f'{problem} in namespace "{namespace}"', reason="VolumeNotFound", hint=hint)


def _reservation_lasts(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod that is to run in a reservation which its namespace has not, or which never lets it start."""
    if not (name := use.named(asked.pod)):
        return
    namespace = asked.place.namespace
    found = next((one for one in seen.list(Reservation, namespace) if one.metadata.name == name), None)
    use.check(name, namespace, reservations.gpus_of(asked.pod, asked.resource), found, asked.at)


def _within_quotas(seen: Reader, asked: Admitted) -> None:
    """Refuse a pod beyond a quota of its namespace, or beyond what the caller may have at once."""
    namespace = asked.place.namespace
    quotas = seen.list(core.ResourceQuota, namespace)
    standing = userrule.quota(asked.pod, asked.place.most_devices, quotas)
    if counted := [*quotas, *([standing] if standing else [])]:
        quota.check(asked.pod, counted, seen.list(core.Pod, namespace))


def check_size(seen: Reader, changed: core.Pod) -> None:
    """Refuse more CPU or memory for a pod that is there than a quota of its namespace has left. Raises: Denied."""
    about = changed.metadata
    there = seen.list(core.Pod, about.namespace)
    before = next((one for one in there if one.metadata.uid == about.uid), None)
    if before is not None:
        others = (one for one in there if one is not before)
        quota.check_growth(before, changed, seen.list(core.ResourceQuota, about.namespace), others)


def check_template(seen: Reader, asked: Admitted) -> None:
    """Refuse a template whose pods would all be refused. Volumes and quotas count when each pod is made."""
    for one in (
        _tenancy_accepts,
        _tenants_may,
        _devices_are_listed,
        _asks_plainly,
        _queue_is_there,
        _reservation_lasts,
    ):
        one(seen, asked)


def check_joining(seen: Reader, asked: Admitted) -> None:
    """Refuse a container that joins a pod which runs; it asks for nothing that is counted. Raises: Denied, Invalid."""
    for one in (_tenancy_accepts, _tenants_may, _asks_plainly):
        one(seen, asked)


CHECKS: Final[tuple[Callable[[Reader, Admitted], None], ...]] = (
    _tenancy_accepts,
    _isolated_enough,
    _tenants_may,
    _devices_are_listed,
    _asks_plainly,
    _slot_has_a_size,
    _queue_is_there,
    _volumes_are_there,
    _reservation_lasts,
    _within_quotas,
)
"""In this order: who may not have the pod at all learns nothing of queues, volumes and quotas."""


def check_claims(seen: Listed, made: Sequence[str], spaces: Iterable[str]) -> None:
    """Refuse volumes that would be made beside pods as the store would. Raises: Denied (`Forbidden`)."""
    for space in spaces:
        here = {one.metadata.name for one in seen.list(core.PersistentVolumeClaim, space)}
        quotas = seen.list(core.ResourceQuota, space)
        for name in made:
            if name not in here:
                quota.check_claims(name, quotas, len(here))
                here.add(name)


def claims_named(made: Sequence[str], spaces: Iterable[str]) -> Iterator[core.PersistentVolumeClaim]:
    """Yield volumes of these names in each namespace, as if they were there."""
    for space in spaces:
        for name in made:
            yield core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name=name, namespace=space))


def _with_local_claims(pod: core.Pod) -> core.Pod:
    """Return a pod whose claims the scheduler knows as folders of this machine."""
    options = pod.spec.machine or core.MachineOptions()
    if options.has_local_claims == bool(volume.claims(pod.spec)):
        return pod
    here = msgspec.structs.replace(options, has_local_claims=not options.has_local_claims)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, machine=here))


def _marked(pod: core.Pod, place: Place) -> core.Pod:
    """Return a pod that says who asked for it, and that its node's kubelet knows as a tenant's, where it is one.

    What a request says of its account is not believed: whoever it names would be told of the pod.
    """
    about = pod.metadata
    annotations = {name: value for name, value in about.annotations.items() if name != names.ACCOUNT}
    annotations |= {names.TENANT: about.namespace} if place.is_tenants else {}
    annotations |= {names.ACCOUNT: place.account} if place.account else {}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(about, annotations=annotations))


def _find_namespace(seen: Reader, name: str) -> meta.ObjectMeta:
    """Return the namespace's metadata; its name alone where there is none."""
    found = (item.metadata for item in seen.list(core.Namespace, "") if item.metadata.name == name)
    return next(found, meta.ObjectMeta(name=name))
