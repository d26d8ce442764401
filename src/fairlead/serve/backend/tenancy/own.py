"""Narrows a machine to what one user may do there: the containers of their own namespace.

What handlers get for such a caller are these values instead of the machine's, so that a route cannot forget to ask who
calls: objects of other namespaces are refused where they are read, and each capability is either narrowed here or is
not there. What a user calls `default` is their own namespace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from fairlead import errors
from fairlead.plan.lease import neighbour
from fairlead.plan.metering.price import Pricing
from fairlead.plan.pod import userrule
from fairlead.plan.tenancy import secret
from fairlead.serve.backend import hardware, idempotency, neighbours, port
from fairlead.serve.backend.place import ASK_ROOT, Part, Place, Submission, Within
from fairlead.serve.backend.tenancy.ownreservations import OwnReservations
from fairlead.serve.history import port as histories
from fairlead.serve.history.view import GPUMetricsList, HistoryView, MetricsView
from fairlead.serve.metering import port as metering
from fairlead.store.port import EVERYTHING, Change, Listing, Selector, Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job
from fairlead.wire.kubernetes.workloads.service import Service

T = TypeVar("T", bound=Object)
Answer = TypeVar("Answer")

ALIASES: Final = ("", "default")
"""What a caller calls the namespace that is theirs."""
NAMESPACED: Final[frozenset[type[Object]]] = frozenset(
    {
        core.Pod,
        core.ConfigMap,
        core.Event,
        core.ResourceQuota,
        core.PersistentVolumeClaim,
        CronJob,
        Deployment,
        Job,
        PodDisruptionBudget,
        ReplicaSet,
        Service,
        StatefulSet,
        ResourceClaim,
        ResourceClaimTemplate,
    }
)
"""Kinds of which a caller sees the objects of their own namespaces."""


_NOT_KEPT: Final = port.Absent(
    kind=errors.Unavailable, message="nothing was kept at the last sample", reason="HistoryUnreachable", hint=ASK_ROOT
)
"""What a caller is given of a problem whose words name the machine's paths."""


def _absent(what: str, hint: str = ASK_ROOT) -> port.Absent:
    return port.Absent(kind=errors.Denied, message=f"{what} is root's", reason="RootOnly", hint=hint)


_DEVICES: Final = _absent("giving GPUs to running containers, past the queue and the quotas,")
_FAULTS: Final = _absent("breaking simulated silicon")
_NEIGHBOURS: Final = _absent("ending programs that Fairlead did not start")
_TENANCIES: Final = _absent("keeping tenancies")
_LEDGER: Final = _absent("reading the ledger of GPUs")
_IMAGES: Final = _absent(
    "making or removing images, which reads the host's files and concerns every user,",
    f"{ASK_ROOT}; `run` pulls an image that is missing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Whose part of the machine it is."""

    uid: int
    most_devices: int
    """Of one resource at once, where no quota of their namespace says otherwise; 0: no limit."""
    mounts: tuple[str, ...] = ()
    """See `place.Part.mounts`."""

    @property
    def account(self) -> str:
        """See `place.Part.account`: a user of the machine has none."""
        return ""

    @property
    def names_others(self) -> bool:
        """See `place.Part.names_others`: who else uses the machine is known to its users."""
        return True

    @property
    def namespace(self) -> str:
        """Where their containers are."""
        return userrule.namespace(self.uid)

    @property
    def makes_namespace(self) -> bool:
        """See `place.Part.makes_namespace`."""
        return True

    def sees(self, namespace: str) -> bool:
        """See `place.Part.sees`."""
        return namespace == self.namespace

    def sees_since(self, namespace: str) -> float | None:
        """See `place.Part.sees_since`: no other user ever has the namespace."""
        return 0.0 if self.sees(namespace) else None

    def place_new(self, namespace: str | None) -> str:
        """See `place.Part.place_new`."""
        return self.place(namespace)

    def place(self, namespace: str | None) -> str:
        """Return the namespace that is meant. Raises: Denied: another one than their own."""
        if namespace is None or namespace in ALIASES or namespace == self.namespace:
            return self.namespace
        message = f'namespace "{namespace}" is not yours, which is "{self.namespace}"'
        raise errors.Denied(message, reason="NamespaceForbidden", hint="leave it out to mean your own")


def backend(whole: port.Backend, user: Part) -> port.Backend:
    """Return what a user or an account may do with a machine's backend."""
    living, manifests = OwnLifecycle(whole=whole.lifecycle, user=user), whole.manifests
    if not isinstance(manifests, port.Absent):
        manifests = OwnManifests(whole=manifests, user=user)
    workloads = whole.workloads
    if not isinstance(workloads, port.Absent):
        workloads = OwnWorkloads(whole=workloads, user=user)
    history = whole.history
    if not isinstance(history, port.Absent):
        history = OwnHistory(whole=history, user=user)
    elif history.reason != port.NO_HISTORY.reason:
        history = _NOT_KEPT
    reserved = whole.reservations
    if not isinstance(reserved, port.Absent):
        reserved = OwnReservations(whole=reserved, user=user)
    # Each field by name, so that a new capability is not a user's by accident.
    return port.Backend(
        places=Within(part=user),
        hardware=OwnHardware(whole=whole.hardware, user=user),
        lifecycle=living,
        logs=whole.logs,  # of pods that a user could find
        streams=whole.streams,
        access=whole.access,
        volumes=OwnVolumes(whole=whole.volumes, user=user),
        secrets=OwnSecrets(whole=whole.secrets, user=user),
        images=whole.images,
        image_building=_IMAGES,
        manifests=manifests,
        devices=_DEVICES,
        faults=_FAULTS,
        tenancies=_TENANCIES,
        metering=OwnMetering(whole=whole.metering, user=user),
        ledger=_LEDGER,
        neighbours=_NEIGHBOURS,
        claims=whole.claims,  # in the caller's place, which says whose they are
        workloads=workloads,
        changes=whole.changes,  # of pods that the caller could find, in the caller's place
        first_outputs=whole.first_outputs,
        history=history,
        reservations=reserved,
        requests=whole.requests,  # shared: the digest that names a request includes the caller
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHistory:
    """A `history.port.History` of GPUs while the caller's containers held them."""

    whole: histories.History
    user: Part

    async def of_container(self, pod: core.Pod, asked: histories.Question) -> MetricsView:
        """See `History.of_container`: of a pod that the caller could find."""
        return self._shown(await _hushed(self.whole.of_container(pod, asked)))

    async def of_gpu(
        self,
        gpu: str,
        asked: histories.Question,
        *,
        sees: histories.Sees | None = None,  # noqa: ARG002 the caller's part says it
    ) -> MetricsView:
        """See `History.of_gpu`."""
        return self._shown(await _hushed(self.whole.of_gpu(gpu, asked, sees=self.user.sees_since)))

    async def of_gpus(self, *, sees: histories.Sees | None = None) -> GPUMetricsList:  # noqa: ARG002
        """See `History.of_gpus`."""
        return await _hushed(self.whole.of_gpus(sees=self.user.sees_since))

    def describe(self) -> HistoryView:
        """See `History.describe`; where the files are is root's to know."""
        found = self.whole.describe()
        return msgspec.structs.replace(found, problem="", set_aside="", prometheus="")

    def _shown(self, found: MetricsView) -> MetricsView:
        problem = self.whole.describe().problem
        if not problem:
            return found
        notes = tuple(_NOT_KEPT.message if problem in note else note for note in found.notes)
        return msgspec.structs.replace(found, notes=notes)


async def _hushed(answer: Awaitable[Answer]) -> Answer:
    """Return an answer. Raises: what it raises, without the machine's paths and addresses, which are root's."""
    try:
        return await answer
    except (errors.Unavailable, errors.ProtocolError) as error:
        if error.reason == "HistoryBusy":
            raise
        raise errors.Unavailable("figures cannot be read now", reason=error.reason, hint=ASK_ROOT) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMetering:
    """A `metering.Metering` of what a caller may see; notes, which name others' leases, are root's."""

    whole: metering.Metering
    user: Part

    async def measure(self, *, begin: int, end: int) -> metering.Measured:
        """See `Metering.measure`."""
        found = await self.whole.measure(begin=begin, end=end)
        charges = (one for one in found.charges if self.user.sees(one.namespace))
        tenancies = {namespace: name for namespace, name in found.tenancies.items() if self.user.sees(namespace)}
        return metering.Measured(charges=charges, unattributed=0, notes=(), tenancies=tenancies)

    @property
    def pricing(self) -> Pricing:
        """See `Metering.pricing`."""
        return self.whole.pricing


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLifecycle:
    """A `port.Lifecycle` within one user's namespace."""

    whole: port.Lifecycle
    user: Part

    async def submit(self, asked: Submission, *, once: idempotency.Once | None = None) -> core.Pod:
        """See `port.Lifecycle.submit`."""
        return await self.whole.submit(asked, once=once)

    async def judge(self, asked: Sequence[Submission], *, claims: Sequence[str] = ()) -> tuple[core.Pod, ...]:
        """See `port.Lifecycle.judge`."""
        return await self.whole.judge(asked, claims=claims)

    async def stop(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.stop`."""
        return await self.whole.stop(name, self.user.place(namespace), grace_s=grace_s)

    async def remove(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """See `port.Lifecycle.remove`."""
        return await self.whole.remove(name, self.user.place(namespace), grace_s=grace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnManifests(OwnLifecycle):
    """A `port.ManifestLifecycle` within one user's namespace."""

    whole: port.ManifestLifecycle

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """See `port.ManifestLifecycle.leave_out`."""
        return self.whole.leave_out(fields)

    async def replace(self, old: core.Pod, asked: Submission, *, grace_s: int | None) -> core.Pod:
        """See `port.ManifestLifecycle.replace`."""
        return await self.whole.replace(old, asked, grace_s=grace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnVolumes:
    """A `port.Volumes` within one user's namespace."""

    whole: port.Volumes
    user: Part

    async def find(self, name: str, namespace: str) -> core.PersistentVolumeClaim:
        """See `port.Volumes.find`."""
        return await self.whole.find(name, self.user.place(namespace))

    async def create(
        self, name: str, place: Place, *, labels: Mapping[str, str], size: str
    ) -> core.PersistentVolumeClaim:
        """See `port.Volumes.create`."""
        return await self.whole.create(name, place, labels=labels, size=size)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Volumes.remove`."""
        await self.whole.remove(name, self.user.place(namespace))

    async def prune(self, namespace: str | None) -> tuple[str, ...]:
        """See `port.Volumes.prune`."""
        return await self.whole.prune(self.user.place(namespace))

    def path(self, claim: core.PersistentVolumeClaim) -> str:
        """See `port.Volumes.path`."""
        return self.whole.path(claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSecrets:
    """A `port.Secrets` within one user's namespace, or those of an account's tenancies."""

    whole: port.Secrets
    user: Part

    async def list_secrets(self, namespace: str | None) -> tuple[secret.Described, ...]:
        """See `port.Secrets.list_secrets`; no namespace means all of the caller's."""
        if namespace is not None:
            return await self.whole.list_secrets(self.user.place(namespace))
        return tuple(one for one in await self.whole.list_secrets(None) if self._may_see(one.namespace))

    def _may_see(self, namespace: str) -> bool:
        try:
            return self.user.place(namespace) == namespace
        except errors.FairleadError:
            return False

    async def find(self, name: str, namespace: str) -> secret.Described:
        """See `port.Secrets.find`."""
        return await self.whole.find(name, self.user.place(namespace))

    async def create(self, name: str, place: Place, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.create`."""
        return await self.whole.create(name, place, values)

    async def replace(self, name: str, namespace: str, values: Mapping[str, bytes]) -> secret.Described:
        """See `port.Secrets.replace`."""
        return await self.whole.replace(name, self.user.place(namespace), values)

    async def remove(self, name: str, namespace: str) -> None:
        """See `port.Secrets.remove`."""
        await self.whole.remove(name, self.user.place(namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWorkloads:
    """A `port.Workloads` within one user's namespace; what is made is judged by its place."""

    whole: port.Workloads
    user: Part

    async def judge(self, item: port.Workload, place: Place, written: Mapping[str, Any]) -> None:
        """See `port.Workloads.judge`."""
        await self.whole.judge(item, place, written)

    async def keep(self, item: port.Workload, place: Place, written: Mapping[str, Any]) -> str:
        """See `port.Workloads.keep`."""
        return await self.whole.keep(item, place, written)

    async def remove(self, kind: type[port.Workload], name: str, namespace: str) -> None:
        """See `port.Workloads.remove`."""
        await self.whole.remove(kind, name, self.user.place(namespace))

    async def scale(self, kind: type[port.Workload], name: str, namespace: str, replicas: int) -> port.Workload:
        """See `port.Workloads.scale`."""
        return await self.whole.scale(kind, name, self.user.place(namespace), replicas)

    async def restart(self, kind: type[port.Workload], name: str, namespace: str) -> port.Workload:
        """See `port.Workloads.restart`."""
        return await self.whole.restart(kind, name, self.user.place(namespace))

    async def pause(self, kind: type[port.Workload], name: str, namespace: str, *, is_paused: bool) -> port.Workload:
        """See `port.Workloads.pause`."""
        return await self.whole.pause(kind, name, self.user.place(namespace), is_paused=is_paused)

    async def undo(self, kind: type[port.Workload], name: str, namespace: str, revision: int) -> port.Workload:
        """See `port.Workloads.undo`."""
        return await self.whole.undo(kind, name, self.user.place(namespace), revision)


def whose(part: Part | None, namespace: str, name: str) -> tuple[str, str]:
    """Return whose a container is and its name, as a caller may know who holds a GPU; empty: not to be known.

    The one place that decides it, for lists of GPUs, why a container waits, and the console, which asks for both.
    Args: part: what the caller has of the machine; None: all of it.
    """
    if part is None or part.sees(namespace):
        return namespace, name
    return (namespace, "") if part.names_others else ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHardware:
    """A `port.Hardware` that shows whose a device is, and of other users' containers not the name."""

    whole: port.Hardware
    user: Part

    async def list_gpus(self) -> hardware.GPUListing:
        """See `port.Hardware.list_gpus`."""
        found = await self.whole.list_gpus()
        return msgspec.structs.replace(found, gpus=tuple(map(self._shown_gpu, found.gpus)))

    def _shown_gpu(self, view: hardware.GPUView) -> hardware.GPUView:
        """Return a GPU with its holders as the caller may know them, and of its neighbours that there are some."""
        return msgspec.structs.replace(
            view,
            holders=tuple(map(self.shown, view.holders)),
            neighbours=tuple(map(neighbours.hidden, view.neighbours)),
            message=neighbour.HIDDEN if view.reason == neighbour.REASON else view.message,
        )

    def shown(self, holder: hardware.Holder) -> hardware.Holder:
        """Return a holder as the caller may know it."""
        namespace, name = whose(self.user, holder.namespace, holder.container)
        if name or not holder.container:
            return holder
        since = holder.since if namespace else None
        return msgspec.structs.replace(holder, namespace=namespace, container="", part="", since=since)

    async def list_topologies(self) -> hardware.TopologyList:
        """See `port.Hardware.list_topologies`."""
        return await self.whole.list_topologies()

    async def describe(self) -> hardware.BackendStatus:
        """See `port.Hardware.describe`."""
        return await self.whole.describe()

    async def check_ready(self) -> None:
        """See `port.Hardware.check_ready`."""
        await self.whole.check_ready()


class ReadOnly:
    """The half of a `store.port.Store` that writes: each write is refused, in the words of who narrows the store."""

    __slots__ = ()

    def refuse(self, kind: type[Object]) -> NoReturn:
        """Raise the refusal for a caller who may not read, or not write, objects of a kind."""
        raise NotImplementedError

    async def create(self, item: T) -> T:
        """Refuse it."""
        self.refuse(type(item))

    async def update(self, item: T) -> T:
        """Refuse it."""
        self.refuse(type(item))

    async def update_status(self, item: T) -> T:
        """Refuse it."""
        self.refuse(type(item))

    async def apply(self, item: T, *, manager: str) -> T:  # noqa: ARG002 as the port has it
        """Refuse it."""
        self.refuse(type(item))

    async def delete(
        self,
        kind: type[T],
        name: str,  # noqa: ARG002 as the port has it
        namespace: str = "",  # noqa: ARG002
        *,
        grace_s: int | None = None,  # noqa: ARG002
        uid: str | None = None,  # noqa: ARG002
    ) -> None:
        """Refuse it."""
        self.refuse(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStore(ReadOnly):
    """A `store.port.Store` that is read within one user's namespace, and never written.

    Every user may read nodes, and what is recorded of them; no user may read kinds that are not listed here.
    """

    whole: Store
    user: User

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """See `Store.get`."""
        return await self.whole.get(kind, name, self._narrowed(kind, Selector(namespace=namespace)).namespace or "")

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        """See `Store.list`."""
        return await self.whole.list(kind, self._narrowed(kind, selector))

    def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        """See `Store.watch`."""
        return self.whole.watch(kind, self._narrowed(kind, selector), since=since)

    def _narrowed(self, kind: type[T], selector: Selector) -> Selector:
        if kind is core.Node or (kind is core.Event and selector.fields.get("involvedObject.kind") == core.Node.KIND):
            return selector
        if kind not in NAMESPACED:
            self.refuse(kind)
        return replace(selector, namespace=self.user.place(selector.namespace))

    def refuse(self, kind: type[Object]) -> NoReturn:
        """See `ReadOnly.refuse`."""
        raise errors.Denied(f"objects of kind {kind.KIND} are root's", reason="RootOnly", hint=ASK_ROOT)
