"""Declares the ports to where containers run, by capability: one machine, or a cluster through its API server.

Objects are read from the store wherever they are. Everything else that a handler needs is a field of `Backend`; what a
backend cannot do is `Absent` there: `require` refuses it with the reason and the next step, `find` goes on without it.
No handler asks which backend it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from fairlead import errors
from fairlead.engine.access import Usage
from fairlead.engine.port import ImageStore, Recipe
from fairlead.plan.lease.baseline import Decided, Learned
from fairlead.plan.lease.row import Row
from fairlead.plan.pod.running import resize
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.tenancy import secret
from fairlead.plan.tenancy.matrix import Matrix
from fairlead.serve.backend import hardware, idempotency
from fairlead.serve.backend.deviceview import DeviceChanged
from fairlead.serve.backend.faults import FaultInjection
from fairlead.serve.backend.place import Place, Places, Submission
from fairlead.serve.history.port import History
from fairlead.serve.metering.port import Metering
from fairlead.store import subresource
from fairlead.wire.fairlead.reservation import Reservation
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, devicechange, meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job
from fairlead.wire.kubernetes.workloads.service import Service
from fairlead.wire.oci.registryauth import Login

T = TypeVar("T")
Workload = core.ConfigMap | Deployment | StatefulSet | Job | CronJob | Service | PodDisruptionBudget
"""What manifests have beside Pods that a machine's own controllers and kubelet read."""
DeviceObject = ResourceClaim | ResourceClaimTemplate | DeviceClass | ResourceSlice | DeviceTaintRule
"""What manifests have of claims, and of what they refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A capability that a backend does not have, and what its refusal says."""

    message: str
    reason: str
    hint: str
    kind: type[errors.FairleadError] = errors.RequestError


def require(capability: T | Absent) -> T:
    """Return a capability. Raises: what its absence says."""
    if isinstance(capability, Absent):
        raise capability.kind(capability.message, reason=capability.reason, hint=capability.hint)
    return capability


def find(capability: T | Absent) -> T | None:
    """Return a capability; None where it is absent, for handlers that can go on without it."""
    return None if isinstance(capability, Absent) else capability


class Hardware(Protocol):
    """GPUs, and how the backend is."""

    async def list_gpus(self) -> hardware.GPUListing:
        """Return every GPU with its health and holders. Raises: NotFound: the cluster knows no GPUDevices."""
        ...

    async def list_topologies(self) -> hardware.TopologyList:
        """Return, node by node, how its GPUs reach each other. Raises: as `list_gpus`."""
        ...

    async def describe(self) -> hardware.BackendStatus:
        """Return how this backend is; what is broken is described, not raised."""
        ...

    async def check_ready(self) -> None:
        """Return if containers can be run. Raises: Unavailable (`NodeNotReady`), and whatever the store raises."""
        ...


class Lifecycle(Protocol):
    """Pods made, stopped and removed."""

    async def submit(self, asked: Submission, *, once: idempotency.Once | None = None) -> core.Pod:
        """Store a pod.

        Args:    once: the request, which is stored in the same step; `Requests.find` knows it from then on.
        Raises:  Invalid: a rule is broken.   Denied: a quota of its namespace, or a rule for tenants' pods.
                 Conflict (`AlreadyExists`): its name.
        """
        ...

    async def judge(self, asked: Sequence[Submission], *, claims: Sequence[str] = ()) -> tuple[core.Pod, ...]:
        """Return pods as `submit` would store each now, if it were the only one, and store nothing.

        Args:    claims: names of volumes that would be made beside them.
        Raises:  as `submit`.
        """
        ...

    async def stop(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """Ask for a stop; returns the pod as it is. Ended pods are left as they are. Raises: NotFound; Denied."""
        ...

    async def remove(self, name: str, namespace: str, *, grace_s: int | None) -> core.Pod:
        """Ask for a stop and for the object's removal once nothing of it runs; returns the pod as it was.

        Raises: NotFound; Conflict.
        """
        ...


class ManifestLifecycle(Lifecycle, Protocol):
    """A `Lifecycle` of pods as manifests have them."""

    def leave_out(self, fields: Sequence[str]) -> tuple[str, ...]:
        """Return what is to be said of a manifest's fields that are not read.

        Raises: RequestError (`FieldsUnread`): none may be left out here.
        """
        ...

    async def replace(self, old: core.Pod, asked: Submission, *, grace_s: int | None) -> core.Pod:
        """Stop and remove a pod, then store another one of its name; returns the new one.

        What `submit` would refuse is refused first, and the old pod left as it is.
        Raises: as `submit` and `remove`.
        """
        ...


class Images(Protocol):
    """Images that containers can be run from without a pull."""

    async def list_images(self) -> tuple[hardware.ImageView, ...]:
        """Return them."""
        ...


class ImageBuilding(Protocol):
    """Images made and removed here."""

    async def import_root(self, source: Path, name: str, *, command: tuple[str, ...] = ()) -> hardware.ImageView:
        """Make an image of a root file system. Raises: Invalid: `source` is none."""
        ...

    def build(self, context: Path, name: str, recipe: Recipe) -> AsyncGenerator[bytes, None]:
        """Build from a Containerfile, yielding its output. Raises: Invalid (`BuildFailed`, `BuildArgInvalid`)."""
        ...

    async def remove_image(self, name: str) -> None:
        """Remove a name; unknown names are not errors."""
        ...

    @property
    def kept(self) -> ImageStore:
        """The store they are kept in."""
        ...


class Volumes(Protocol):
    """Volumes that live on their own, known by a name; the objects themselves are read from the store."""

    async def find(self, name: str, namespace: str) -> core.PersistentVolumeClaim:
        """Return one. Raises: NotFound (`VolumeNotFound`)."""
        ...

    async def create(
        self, name: str, place: Place, *, labels: Mapping[str, str], size: str
    ) -> core.PersistentVolumeClaim:
        """Make one; one of that name is returned as it is.

        Args:    size: a quantity of bytes; empty: as much as there is.
        Raises:  Invalid: its name, or a size where there is none, or none where there must be; Denied: a quota.
        """
        ...

    async def remove(self, name: str, namespace: str) -> None:
        """Remove one with its files. Raises: NotFound; Conflict (`VolumeInUse`): a container mounts it."""
        ...

    async def prune(self, namespace: str | None) -> tuple[str, ...]:
        """Remove those made by Fairlead that no container mounts, and return their names. None: all namespaces."""
        ...

    def path(self, claim: core.PersistentVolumeClaim) -> str:
        """Return its folder on this machine; empty where it is on none, or on another."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationListing:
    """Reservations as one caller may know them."""

    items: tuple[Reservation, ...]
    """Those that are theirs."""
    others: tuple[Window, ...]
    """Windows of the others, open or ahead."""
    capacity: int
    """GPUs of the machine."""


class Reservations(Protocol):
    """GPUs that are reserved for times to come."""

    @property
    def zone(self) -> str:
        """Time zone of reservations that name none, by its IANA name."""
        ...

    async def find(self, name: str, namespace: str) -> Reservation:
        """Return one. Raises: NotFound (`ReservationNotFound`)."""
        ...

    async def list_all(self, namespace: str | None) -> ReservationListing:
        """Return those of a namespace; None: all that the caller may know."""
        ...

    async def create(self, asked: Reservation, place: Place, *, sees: Callable[[str], bool]) -> Reservation:
        """Keep one in its place. Args: sees: whose others may be named where they are in the way.

        Raises: Invalid; Insufficient: others have the GPUs then; Denied: more than a tenant may; Conflict: its name.
        """
        ...

    async def remove(self, name: str, namespace: str) -> None:
        """Remove one. Raises: NotFound (`ReservationNotFound`)."""
        ...


class DeviceChanges(Protocol):
    """Devices given to running containers and taken from them."""

    def device_id(self, text: str) -> str:
        """Return the device id of a GPU by index, PCI address, UUID or the beginning of one; others stay as they are.

        Raises: Invalid: it is the beginning of several.
        """
        ...

    async def carry_out(self, pod: core.Pod, wanted: devicechange.DeviceChangeSpec) -> DeviceChanged:
        """Have the pod's kubelet carry out a change. Raises: Conflict; Unavailable (`KubeletCannot`); what it says."""
        ...


class PodAccess(Protocol):
    """Into running containers."""

    async def signal(self, pod: core.Pod, container: str, number: int) -> None:
        """Send a signal to the first process. Raises: Conflict (`ContainerNotRunning`); Invalid: `kill` is missing."""
        ...

    async def list_processes(self, pod: core.Pod, container: str) -> tuple[tuple[str, ...], ...]:
        """Return the processes as a table, titles first. Raises: as `signal`."""
        ...

    async def usage(self, pod: core.Pod, container: str) -> Usage:
        """Return what the container uses. Raises: as `signal`."""
        ...

    async def sftp(self, pod: core.Pod, container: str) -> subresource.Session:
        """Serve SFTP over the container's files on the session's streams.

        Raises: as `signal`; Unavailable (`SFTPNotServed`).
        """
        ...

    async def pack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """Read a path as a tar, the session's output. Raises: Conflict: it has not started."""
        ...

    async def unpack(self, pod: core.Pod, container: str, path: str) -> subresource.Session:
        """Write a tar, the session's input, below a folder; no link of the container's leads out of it."""
        ...


class PodChanges(Protocol):
    """Changes of pods that run."""

    async def add(self, pod: core.Pod, item: core.EphemeralContainer, place: Place) -> core.Pod:
        """Add one to a pod, and return the pod.

        Args:    place: the pod's.
        Raises:  Invalid; Denied: a rule for tenants' pods; Conflict: the pod has ended; Unavailable (`DebugNotServed`).
        """
        ...

    async def judge_resize(self, pod: core.Pod, wanted: resize.Wanted) -> core.Pod:
        """Return the pod as `resize` would leave it, and change nothing. Raises: as `resize`."""
        ...

    async def resize(self, pod: core.Pod, wanted: resize.Wanted) -> core.Pod:
        """Have a pod's containers get other amounts of CPU and memory, and return the pod; its node carries it out.

        Args:    wanted: returns all resources of containers, by name.
        Raises:  Invalid, in an API server's words; Denied: a quota; Conflict: the pod has ended.
        """
        ...

    async def rename(self, pod: core.Pod, name: str) -> core.Pod:
        """Give a pod another name, and return the pod; uid, record, output and history stay.

        Raises: Conflict: it runs (`ContainerRuns`), has an owner (`PodOwned`), another has the name; Invalid: the name.
        """
        ...

    async def set_conditions(self, pod: core.Pod, conditions: Sequence[meta.Condition]) -> core.Pod:
        """Write what a pod's readiness gates wait for, and return the pod. Raises: Invalid: a condition of no gate."""
        ...


class DeviceClaims(Protocol):
    """Claims of devices, and what they refer to, as manifests have them."""

    async def judge(self, item: DeviceObject, place: Place) -> tuple[str, ...]:
        """Return what would be left out of an object, and store nothing. Raises: as `keep`."""
        ...

    async def keep(self, item: DeviceObject, place: Place) -> tuple[str, ...]:
        """Store an object, or change the one of its name; returns what is left out, since its feature is off.

        Raises: Invalid, in an API server's words; Denied: it is not the caller's to make, or a quota.
        """
        ...

    async def remove(
        self, name: str, place: Place, kind: type[ResourceClaim | ResourceClaimTemplate] = ResourceClaim
    ) -> None:
        """Remove a claim, or a template; a claim that is used goes with its last user. Raises: NotFound."""
        ...

    async def share(self, spec: ResourceClaimSpec, place: Place) -> str:
        """Return the name of a template of such claims, made where there is none; it goes with its last pod.

        Raises: Invalid, in an API server's words; Conflict.
        """
        ...


class Workloads(Protocol):
    """What pods are configured and multiplied by, as manifests have it."""

    async def judge(self, item: Workload, place: Place, written: Mapping[str, Any]) -> None:
        """Refuse what `keep` would, and store nothing. Raises: as `keep`."""
        ...

    async def keep(self, item: Workload, place: Place, written: Mapping[str, Any]) -> str:
        """Store an object, or change the one of its name; returns `created`, `configured` or `unchanged`.

        Args:   written: the manifest, with the fields that are not carried out.
        Raises: Invalid, in an API server's words; Denied: it is not the caller's to make.
        """
        ...

    async def remove(self, kind: type[Workload], name: str, namespace: str) -> None:
        """Remove one, with what it made. Raises: NotFound."""
        ...

    async def scale(self, kind: type[Workload], name: str, namespace: str, replicas: int) -> Workload:
        """Set how many pods it has. Raises: NotFound; Invalid: it is of another kind."""
        ...

    async def restart(self, kind: type[Workload], name: str, namespace: str) -> Workload:
        """Replace its pods a few at a time. Raises: as `scale`."""
        ...

    async def pause(self, kind: type[Workload], name: str, namespace: str, *, is_paused: bool) -> Workload:
        """Keep a Deployment from replacing its pods, or have it go on. Raises: as `scale`."""
        ...

    async def undo(self, kind: type[Workload], name: str, namespace: str, revision: int) -> Workload:
        """Give a Deployment the template of an earlier revision again.

        Args:   revision: 0: the one before the present one.
        Raises: as `scale`; Invalid: the revision is not kept; Conflict: it is paused.
        """
        ...


class TenancyTrial(Protocol):
    """Tenancies kept here, whose networks can be tried."""

    def judge(self, item: Tenancy) -> None:
        """Refuse a tenancy none of whose containers could ever start here. Raises: Unavailable: what is missing."""
        ...

    async def test(self, item: Tenancy, every: Sequence[Tenancy], *, image: str = "") -> Matrix:
        """Send packets from inside a tenancy's network and into it.

        Args:   every: all tenancies there are.   image: of the pods that do it, on a cluster; empty: Fairlead's own.
        Raises: RequestError (`NotOnMachine`): an image is named where none is needed.
        """
        ...


class RegistryCredentials(Protocol):
    """Registry logins that tenancies' images are pulled with; no method returns one."""

    async def add(self, item: Tenancy, registry: str, login: Login) -> tuple[str, ...]:
        """Keep a tenancy's login; returns the registries that it has one for. Raises: Invalid (`RegistryInvalid`)."""
        ...

    async def drop(self, item: Tenancy, registry: str) -> tuple[str, ...]:
        """Forget a login; returns the registries that are left. Idempotent."""
        ...


class Secrets(Protocol):
    """Values that containers are given and nothing shows again; by name within a namespace."""

    async def list_secrets(self, namespace: str | None) -> tuple[secret.Described, ...]:
        """Return them in the order of namespace and name. None: all namespaces."""
        ...

    async def find(self, name: str, namespace: str) -> secret.Described:
        """Return one. Raises: NotFound (`SecretNotFound`)."""
        ...

    async def create(self, name: str, place: Place, values: Mapping[str, bytes]) -> secret.Described:
        """Keep a new one. Raises: Invalid (`SecretInvalid`); Conflict (`AlreadyExists`); Denied: a quota."""
        ...

    async def replace(self, name: str, namespace: str, values: Mapping[str, bytes]) -> secret.Described:
        """Keep other values in place of all that it has. Raises: Invalid, NotFound (`SecretNotFound`)."""
        ...

    async def remove(self, name: str, namespace: str) -> None:
        """Forget one; containers that run keep what they were given. Raises: NotFound (`SecretNotFound`)."""
        ...


class Ledger(Protocol):
    """Who has which GPU of a machine, between tenants too."""

    async def rows(self) -> Mapping[str, Row]:
        """Return each GPU's row. Raises: Unavailable (`LedgerMissing`)."""
        ...

    async def ask(self, verb: str, gpu: str, *, by: str, why: str) -> Row:
        """Carry out a person's request (`plan.lease.intent`), and return the GPU's row. Raises: as `plan_intent`."""
        ...

    async def baselines(self) -> tuple[Learned, Decided]:
        """Return what firmware was seen here, and what persons decided. Raises: ProtocolError (`BaselineDamaged`)."""
        ...

    async def decide(self, act: Callable[[Learned, Decided], Decided]) -> None:
        """Keep what a person decides. Raises: what `act` raises; Unavailable: the disk refuses."""
        ...


class Neighbours(Protocol):
    """Programs on a machine's GPUs that Fairlead did not start."""

    async def end(self, gpus: Collection[str], ids: Collection[str], *, by: str) -> hardware.EndedNeighbours:
        """End them: SIGTERM, after some seconds SIGKILL; returns the outcome for each.

        Never ended are the first process, the driver's daemons, Fairlead's programs, and a process that got the pid.
        Args: gpus: indices, UUIDs or addresses; none: of all GPUs.   ids: `NeighbourView.id` of those that are meant.
              by: who asks, for the log.
        Raises: NotFound (`GPUUnknown`).
        """
        ...


NO_NEIGHBOURS: Final = Absent(
    kind=errors.Unavailable,
    message="programs that Fairlead did not start are not looked for here",
    reason="NeighboursUnknown",
    hint="each machine's service looks for them, with lease.ledger=on and lease.neighbours other than ignore",
)
NO_LEDGER: Final = Absent(
    kind=errors.Unavailable,
    message="no ledger of who has which GPU is kept here",
    reason="LedgerMissing",
    hint="each machine's agent keeps its own, with lease.ledger=on",
)


NO_WORKLOADS: Final = Absent(
    message="objects other than Pods are not made here",
    reason="NotOnCluster",
    hint="`kubectl apply -f FILE` makes them; the pods that they make can be seen from here",
)
NO_CLAIMS: Final = Absent(
    message="claims of devices are not made here",
    reason="NotOnCluster",
    hint="`kubectl apply -f FILE` makes them; pods that name them can be run from here",
)
NO_POD_CHANGES: Final = Absent(
    message="pods of a cluster are changed by its own tools",
    reason="NotOnCluster",
    hint="`kubectl debug POD -it --image IMAGE --target CONTAINER`, `kubectl patch pod POD --subresource status`",
)
NO_RESERVATIONS: Final = Absent(
    message="no GPUs are reserved here",
    reason="NotOnCluster",
    hint="one machine's `fairlead up` keeps reservations; clusters have queues and quotas",
)
NO_CREDENTIALS: Final = Absent(
    message="no registry credentials are kept here",
    reason="NoTenancies",
    hint="a running `fairlead up`, or a cluster, keeps tenancies and theirs",
)


class FirstOutputs(Protocol):
    """When containers wrote first, where no controller records it."""

    async def first_output(self, pod: core.Pod) -> float | None:
        """Return when a pod's first container first wrote, Unix seconds; None: it has not, or it is not known."""
        ...


RECORDED_OUTPUTS: Final = Absent(
    message="first outputs are steps of the container's trace here",
    reason="Recorded",
    hint="`fairlead trace`",
)
NO_HISTORY: Final = Absent(
    kind=errors.NotFound,
    message="no figures over time are kept here",
    reason="HistoryAbsent",
    hint="history.days above 0 keeps them on a machine of its own; on a cluster set history.prometheus to an address",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Where containers run: one field a capability.

    One whose default is an `Absent` is closed wherever a backend does not fill it, to users and accounts above all.
    """

    places: Places
    """Where the caller may make something."""
    hardware: Hardware
    lifecycle: Lifecycle
    logs: subresource.Logs
    streams: subresource.Streams | Absent
    access: PodAccess
    volumes: Volumes
    secrets: Secrets
    images: Images
    image_building: ImageBuilding | Absent
    manifests: ManifestLifecycle | Absent
    """Takes the Pods of a manifest as they were read here."""
    devices: DeviceChanges | Absent
    faults: FaultInjection | Absent
    tenancies: TenancyTrial | Absent
    metering: Metering
    credentials: RegistryCredentials | Absent = NO_CREDENTIALS
    ledger: Ledger | Absent = NO_LEDGER
    neighbours: Neighbours | Absent = NO_NEIGHBOURS
    """Ends programs that Fairlead did not start."""
    claims: DeviceClaims | Absent = NO_CLAIMS
    workloads: Workloads | Absent = NO_WORKLOADS
    changes: PodChanges | Absent = NO_POD_CHANGES
    first_outputs: FirstOutputs | Absent = RECORDED_OUTPUTS
    history: History | Absent = NO_HISTORY
    reservations: Reservations | Absent = NO_RESERVATIONS
    requests: idempotency.Requests
