"""Plans what preparing a ResourceClaim on this node does, from its allocation, and says why it cannot be. Pure.

`plan` turns a claim into a `Preparation`: the devices that were allocated for our driver, each with its GPU and what
the configuration asks for. The ledger keeps it until the claim is unprepared, so that another process of the agent can
finish or undo it. `find_conflict` compares it with what is prepared already: the ledger refuses a GPU that another has,
and this refuses what the ledger cannot see, two ways of sharing on one GPU.

Configuration is matched as NVIDIA's driver does: the last entry counts that is for the device's kind and names its
request, or none at all; entries of a class stand before those of the claim. Kubelets of 1.36 keep entries of other
requests of the claim, 1.37 drops them: both read alike here.
Source: resource.k8s.io/v1 DeviceAllocationResult; NVIDIA dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/device_state.go.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from fairlead import errors
from fairlead.model.gpu import GPU
from fairlead.model.ids import MIGUUID
from fairlead.plan.dra import consumption, passthrough, share
from fairlead.plan.dra.offered import Kind, OfferedDevice
from fairlead.plan.dra.passthrough import Backend
from fairlead.plan.lease import change, row
from fairlead.wire.kubernetes import names
from fairlead.wire.kubernetes.resource.resourceclaim import (
    POD_CLAIM_NAME,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from fairlead.wire.nvidia import claimconfig
from fairlead.wire.nvidia.claimconfig import GPUConfig, MIGConfig, MPSSharing, TimeSlicing, VFIOConfig

CDI_KIND: Final = "k8s.gpu.nvidia.com/claim"
"""As NVIDIA's driver names its claims' devices: exporters find them by it."""
VERSION: Final = 2
"""Newest form of a note that this version reads."""
_SINCE: Final[Mapping[Kind, int]] = {Kind.VFIO: 2}
"""Which form a note has that names such a device, where that is not the first: older versions leave it alone."""
TWICE: Final = "DevicePreparedTwice"
DIFFERS: Final = "SharingDiffers"
UNSHARED: Final = "ShareNotOffered"
_CLASS: Final = "FromClass"


class Stage(enum.Enum):
    """How far a claim is prepared."""

    BEGUN = "Begun"
    """Its devices are held; what is done to them may be half done."""
    DONE = "Done"
    """Answered, or about to be: nothing is left to do, as long as its CDI file is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """A pod that the claim was reserved for when it was prepared."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How programs share a device: as the claim's configuration says."""

    time_slice: int | None = None
    """The driver's number of an interval; None: it is left as it is."""
    is_mps: bool = False
    thread_percentage: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a claim."""

    request: str
    """Of the claim, without its subrequest: what a kubelet knows."""
    reference: str
    """Of the claim, as it was allocated: `request` or `request/subrequest`."""
    pool: str
    device: str
    share_id: str = ""
    """Of a device that may be allocated several times."""
    kind: Kind
    gpu: str
    """UUID: the row's key in the ledger."""
    profile: str = ""
    """Of a MIG device: `1g.10gb`."""
    start: int | None = None
    """Memory slice at which a MIG device begins."""
    instance: str = ""
    """UUID of a MIG device; empty: it is still to be made."""
    is_admin: bool = False
    """Whether it is only looked at: whoever has it keeps it."""
    share: Share = Share()
    consumed: consumption.Amounts = ()
    """What it has of a device that claims share; notes of older versions do not say."""
    backend: Backend | None = None
    """Of a GPU that is passed through: by which nodes its user opens it."""
    has_api_device: bool = True
    """Whether its containers get the node that all users of that way share."""

    @property
    def ledger_name(self) -> str:
        """What the ledger calls it."""
        return f"{self.device}/{self.share_id}" if self.share_id else self.device


_NONE_KNOWN: Final[Mapping[tuple[str, str], PreparedDevice | None]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a claim is prepared on this node, as the ledger notes it."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    stage: Stage = Stage.BEGUN
    boot_id: str = ""
    at: float = 0.0
    """When it began, in seconds since 1970."""
    pods: tuple[PodName, ...] = ()
    pod_claim: str = ""
    """The pod's own name for it, where a template made it; empty: it was made by itself."""
    version: int = 1

    @property
    def shares(self) -> Mapping[tuple[str, str], PreparedDevice]:
        """The devices of it that other claims may have too, by device and share id."""
        return {(one.device, one.share_id): one for one in self.devices if one.share_id}

    def cdi_name(self, device: PreparedDevice) -> str:
        """Return the qualified name of a device in the claim's CDI file."""
        return f"{CDI_KIND}={self.uid}-{device.device}"

    @property
    def words(self) -> str:
        """Name the claim for messages."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What this node offers."""

    driver: str
    pool: str
    devices: Mapping[str, OfferedDevice]
    """By name."""
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be prepared, and what is said of it."""

    preparation: Preparation
    remarks: tuple[str, ...] = ()
    """Configuration that applies to no device of the claim, or is only preferred and not met."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the configuration that is for our driver."""

    path: str
    requests: frozenset[str]
    config: claimconfig.Config


@dataclass(frozen=True, slots=True)
class _Said:
    """What is found out about the configuration while devices are planned."""

    used: set[str] = field(default_factory=set)
    """Paths of the entries that apply to a device."""
    unmet: list[str] = field(default_factory=list)
    """What it prefers and does not get, a sentence each."""


def plan(
    claim: ResourceClaim,
    uid: str,
    node: Node,
    *,
    at: float,
    known: Mapping[tuple[str, str], PreparedDevice | None] = _NONE_KNOWN,
) -> Plan:
    """Return what preparing a claim does.

    Args:    uid: that the kubelet asks for.   at: now, in seconds since 1970.
             known: shares that this claim has by an earlier Prepare, by device and share id: they stay its own when
             the node offers the device otherwise, or to one claim alone. None: shared as the claim says.
    Raises:  NotFound, Conflict (`ClaimReplaced`, `ClaimNotAllocated`, `ClaimNotReserved`): the claim is not what the
             kubelet believes.   NotFound (`DeviceUnknown`): it has a device that this node does not offer.
             Invalid (`ClaimConfigInvalid`): its configuration; (`ShareNotOffered`, `ShareNotAsked`,
             `AdminAccessNotAsked`): its status has more than the node offers, or than the claim asks for.
    """
    words = f"{claim.metadata.namespace}/{claim.metadata.name}"
    results = _results(claim, uid, node, words)
    entries = tuple(_entries(claim, node.driver, words))
    said = _Said()
    devices = tuple(_device(claim, one, node, entries, said, known=known) for one in results)
    _assert_distinct(devices, words)
    preparation = Preparation(
        uid=uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        devices=devices,
        boot_id=node.boot_id,
        at=at,
        pod_claim=_pod_claim(claim),
        pods=tuple(PodName(name=one.name, uid=one.uid) for one in claim.status.reserved_for if one.resource == "pods"),
        version=max((_SINCE.get(one.kind, 1) for one in devices), default=1),
    )
    remarks = (
        *(
            f"{one.path} of claim {words} applies to none of its devices"
            for one in entries
            if one.path not in said.used
        ),
        *said.unmet,
    )
    return Plan(preparation=preparation, remarks=remarks)


def asks(preparation: Preparation, driver: str) -> tuple[change.Ask, ...]:
    """Return what a preparation asks of the ledger: nothing for devices that are only looked at."""
    by_gpu: dict[str, list[row.Claim]] = {}
    pod = preparation.pods[0] if preparation.pods else PodName(name="", uid="")
    for one in preparation.devices:
        if one.is_admin:
            continue
        found = row.Claim(
            device=one.ledger_name,
            resource=driver,
            is_shared=bool(one.share_id) or one.kind in {Kind.MIG, Kind.PARTITION},
            namespace=preparation.namespace,
            pod=pod.name,
            uid=pod.uid,
            holder=preparation.uid,
        )
        by_gpu.setdefault(one.gpu, []).append(found)
    return tuple(change.Ask(key=key, claims=tuple(claims)) for key, claims in by_gpu.items())


def find_conflict(wanted: Preparation, others: Iterable[Preparation]) -> errors.FairleadError | None:
    """Return why a claim cannot be prepared beside those that are: a device in two claims, or shared in two ways."""
    for other in others:
        if other.uid == wanted.uid:
            continue
        for own, theirs in ((one, two) for one in wanted.devices for two in other.devices if one.gpu == two.gpu):
            if own.is_admin or theirs.is_admin:
                continue
            if _is_one_place(own, theirs):
                message = f"device {own.ledger_name} of claim {wanted.words} is prepared for claim {other.words}"
                hint = "two allocations have it: `fairlead dra check` names them; it is free once that claim ends"
                return errors.Conflict(message, reason=TWICE, hint=hint)
            if _settings_of(own) != _settings_of(theirs):
                message = (
                    f"claims {wanted.words} and {other.words} share GPU {own.gpu} and ask for different sharing: "
                    f"{_in_words(own.share)} and {_in_words(theirs.share)}"
                )
                hint = "a GPU has one way of sharing: give both claims the same configuration"
                return errors.Conflict(message, reason=DIFFERS, hint=hint)
    return None


def find_excess(
    wanted: Preparation, others: Iterable[Preparation], devices: Mapping[str, OfferedDevice]
) -> errors.Conflict | None:
    """Return why a claim's shares do not fit beside those that are prepared; None: they do.

    Args: devices: that the node offers, by name.
    """
    beside = ((other.words, one) for other in others if other.uid != wanted.uid for one in other.devices)
    return consumption.find_excess(wanted.devices, beside, devices, wanted.words)


def _is_one_place(one: PreparedDevice, other: PreparedDevice) -> bool:
    """Return whether only one of two claims can have what they have: one share of a device, or all of it and a share.

    A scheduler takes a device for free that has shares left from when the node offered it to several claims.
    """
    return one.device == other.device and (one.share_id == other.share_id or not (one.share_id and other.share_id))


def find_made(prepared: Iterable[Preparation], gpus: Iterable[GPU]) -> frozenset[MIGUUID]:
    """Return the MIG devices of GPUs that were made for claims: by their places, since a claim that was begun and not
    finished knows no UUID.
    """
    places = {
        (device.gpu, device.start, device.profile)
        for one in prepared
        for device in one.devices
        if device.kind is Kind.PARTITION
    }
    return frozenset(
        mig.uuid
        for gpu in gpus
        for mig in gpu.mig_devices
        if (str(gpu.uuid), mig.placement_start, mig.profile) in places
    )


def done(preparation: Preparation, instances: Mapping[str, str]) -> Preparation:
    """Return a preparation with nothing left to do. Args: instances: UUIDs of the MIG devices made, by device."""
    devices = tuple(replace(one, instance=instances.get(one.device, one.instance)) for one in preparation.devices)
    return replace(preparation, devices=devices, stage=Stage.DONE)


def _results(claim: ResourceClaim, uid: str, node: Node, words: str) -> Sequence[DeviceRequestAllocationResult]:
    if claim.metadata.uid != uid:
        message = f"claim {words} has UID {claim.metadata.uid}, and the kubelet asked for {uid}"
        hint = "it was deleted and made anew; the kubelet tries again with the new one"
        raise errors.Conflict(message, reason="ClaimReplaced", hint=hint)
    if claim.status.allocation is None:
        message = f"claim {words} is not allocated"
        raise errors.Conflict(message, reason="ClaimNotAllocated", hint=f"`fairlead dra explain {words}` says why")
    if not claim.status.reserved_for:
        message = f"claim {words} is reserved for no pod"
        raise errors.Conflict(message, reason="ClaimNotReserved", hint="a scheduler reserves it for the pod it binds")
    found = [one for one in claim.status.allocation.devices.results if one.driver == node.driver]
    if not found:
        message = f"claim {words} has no device of driver {node.driver}"
        raise errors.Conflict(message, reason="ClaimOfOthers", hint="its allocation names the drivers that it has")
    for one in found:
        if not names.is_dns_label(one.request.partition("/")[0]):
            message = f"claim {words} has a device for request {one.request[:80]!r}, which is no name"
            raise errors.Invalid(message, reason="ClaimInvalid", hint="an API server lets none through; look at yours")
        if one.share_id and not names.is_dns_label(one.share_id):
            message = f"claim {words} has the share {one.share_id[:80]!r} of a device, which is no UID"
            raise errors.Invalid(message, reason="ClaimInvalid", hint="an API server lets none through; look at yours")
        if one.admin_access and not _asks_for_admin_access(claim, one):
            message = f"claim {words} has adminAccess to {one.device} by its status, and its request asks for none"
            hint = "something else than a scheduler wrote its status: delete the claim"
            raise errors.Invalid(message, reason="AdminAccessNotAsked", hint=hint)
        if one.pool != node.pool:
            message = f"device {one.device} of claim {words} is in pool {one.pool}, and this node's is {node.pool}"
            hint = "the pod runs on another node than its devices: no scheduler places it so"
            raise errors.Conflict(message, reason="DeviceElsewhere", hint=hint)
    return found


def _asks_for_admin_access(claim: ResourceClaim, one: DeviceRequestAllocationResult) -> bool:
    """Return whether the request of a device asks to see it whoever has it, which an API server lets few do.

    A spec without requests is that of a claim that is adopted while the API server is away: then nobody knows.
    """
    asked, name = claim.spec.devices.requests or (), one.request.partition("/")[0]
    found = (each.exactly for each in asked if each.name == name)
    return not asked or any(each is not None and bool(each.admin_access) for each in found)


def _pod_claim(claim: ResourceClaim) -> str:
    """Return the pod's own name for a claim; what a user wrote there instead, and is no name, would become a path."""
    name = claim.metadata.annotations.get(POD_CLAIM_NAME, "")
    return name if names.is_dns_label(name) else ""


def _device(
    claim: ResourceClaim,
    result: DeviceRequestAllocationResult,
    node: Node,
    entries: Sequence[_Entry],
    said: _Said,
    *,
    known: Mapping[tuple[str, str], PreparedDevice | None],
) -> PreparedDevice:
    words = f"{claim.metadata.namespace}/{claim.metadata.name}"
    offered = node.devices.get(result.device)
    if offered is None:
        message = f"device {result.device} of claim {words} is not on this node"
        hint = "it was when the claim was allocated: `fairlead dra slices` lists what is here now"
        raise errors.NotFound(message, reason="DeviceUnknown", hint=hint)
    config = _config_for(result.request, offered, entries, said.used, words)
    if offered.kind is Kind.VFIO:
        return _passed(result, offered, config if isinstance(config, VFIOConfig) else VFIOConfig(), said, words)
    shared = _share(config, offered, words) if config is not None and not isinstance(config, VFIOConfig) else Share()
    if result.share_id and not result.admin_access and not offered.device.allow_multiple_allocations:
        shared = _known_share(shared, result, known, words)
    elif not result.admin_access:
        shared = _offered_share(shared, claim, result, offered, known=known)
    start = offered.placement.start if offered.placement is not None else None
    return PreparedDevice(
        request=result.request.partition("/")[0],
        reference=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id or "",
        kind=offered.kind,
        gpu=str(offered.gpu),
        profile=offered.profile,
        start=start,
        instance=str(offered.instance or ""),
        is_admin=bool(result.admin_access),
        share=shared,
        consumed=_consumed(result, known),
    )


def _passed(
    result: DeviceRequestAllocationResult, offered: OfferedDevice, wanted: VFIOConfig, said: _Said, words: str
) -> PreparedDevice:
    """Return a GPU that is passed through. Raises: Invalid, DeviceFault: why nobody could open it as the claim says."""
    if result.admin_access:
        message = f"claim {words} asks for adminAccess to {offered.name}, a GPU that is passed through"
        hint = "such a GPU has one user at a time, and whoever opens it takes it: leave adminAccess out"
        raise errors.Invalid(message, reason="AdminAccessUnsupported", hint=hint)
    if result.share_id:
        message = f"claim {words} has a share of {offered.name}, a GPU that is passed through"
        hint = "such a GPU has one user at a time, and no scheduler allocates it so; delete the claim"
        raise errors.Invalid(message, reason="SharingUnsupported", hint=hint)
    backend = passthrough.choose_backend(wanted, offered.backends, f"{offered.name} ({offered.address})")
    if wanted.backend_policy == claimconfig.PREFER_IOMMUFD and backend is not Backend.IOMMUFD:
        said.unmet.append(
            f"claim {words} prefers iommufd, and this node's kernel has none for {offered.name}: it gets the group"
        )
    return PreparedDevice(
        request=result.request.partition("/")[0],
        reference=result.request,
        pool=result.pool,
        device=result.device,
        kind=offered.kind,
        gpu=str(offered.gpu),
        backend=backend,
        has_api_device=wanted.has_api_device is not False,
    )


def _entries(claim: ResourceClaim, driver: str, words: str) -> Iterator[_Entry]:
    """Yield the configuration for our driver, as written. Raises: Invalid."""
    allocation = claim.status.allocation
    problems: list[str] = []
    for number, one in enumerate(allocation.devices.config if allocation is not None else ()):
        if one.opaque is None or one.opaque.driver != driver:
            continue
        path = _path(number, one)
        config, wrong = claimconfig.read(one.opaque.parameters)
        problems += [f"{path}: {text}" for text in wrong]
        if config is not None and not wrong:
            yield _Entry(path, frozenset(one.requests), config)
    if problems:
        hint = "its DeviceClass or its spec.devices.config has it; a claim cannot be changed, make another"
        raise errors.Invalid(
            f"configuration of claim {words}: {'; '.join(problems)}", reason="ClaimConfigInvalid", hint=hint
        )


def _path(number: int, one: DeviceAllocationConfiguration) -> str:
    return f"config[{number}] ({'of the class' if one.source == _CLASS else 'of the claim'})"


def _config_for(
    request: str, offered: OfferedDevice, entries: Sequence[_Entry], used: set[str], words: str
) -> claimconfig.Config | None:
    wanted = _CONFIGS[offered.kind]
    spellings = {request, request.partition("/")[0]}
    for one in reversed(entries):
        if one.requests and not spellings & one.requests:
            continue
        if isinstance(one.config, wanted):
            used.add(one.path)
            return one.config
        if one.requests:
            kind = _KIND_NAMES[type(one.config)]
            message = f"{one.path} of claim {words} is a {kind}, and request {request} has {offered.name}"
            hint = f"{_KIND_NAMES[wanted]} is for this device"
            if isinstance(one.config, VFIOConfig):
                hint += "; class vfio.gpu.nvidia.com has GPUs for virtual machines"
            raise errors.Invalid(message, reason="ClaimConfigInvalid", hint=hint)
    return None


_CONFIGS: Final[Mapping[Kind, type[claimconfig.Config]]] = {
    Kind.GPU: GPUConfig,
    Kind.MIG: MIGConfig,
    Kind.PARTITION: MIGConfig,
    Kind.VFIO: VFIOConfig,
}
_KIND_NAMES: Final[Mapping[type, str]] = {
    GPUConfig: "GpuConfig",
    MIGConfig: "MigDeviceConfig",
    VFIOConfig: "VfioDeviceConfig",
}


def _share(config: GPUConfig | MIGConfig, offered: OfferedDevice, words: str) -> Share:
    if config.sharing is None:
        return Share()
    if isinstance(config.sharing, TimeSlicing):
        interval = config.sharing.interval
        return Share(time_slice=interval.value if interval is not None else None)
    if offered.kind is not Kind.GPU:
        message = f"claim {words} asks for MPS on {offered.name}, a MIG device"
        hint = "a control daemon serves a whole GPU here: claim a GPU, or leave the sharing out"
        raise errors.Invalid(message, reason="SharingUnsupported", hint=hint)
    return Share(
        is_mps=True,
        thread_percentage=config.sharing.thread_percentage,
        memory_mib=_memory_mib(config.sharing, offered),
    )


def _held_to(own: Share, result: DeviceRequestAllocationResult, offered: OfferedDevice, words: str) -> Share:
    """Return the share of a GPU that MPS holds claims to: the least of what was allocated and what the claim says.

    Raises: Invalid (`SharingUnsupported`): the claim asks for another way of sharing.
    """
    if own.time_slice is not None or offered.shares is None:
        message = f"claim {words} asks for time slices on {offered.name}, which claims share by MPS on this node"
        hint = "leave timeSlicingConfig out of the claim, or ask the node's operator for node.claim_shares_by=nothing"
        raise errors.Invalid(message, reason="SharingUnsupported", hint=hint)
    limits = share.limits_of(result.consumed_capacity, offered.shares, memory_bytes=offered.memory_bytes)
    percentages = [one for one in (own.thread_percentage, limits.percentage) if one]
    return Share(
        is_mps=True,
        thread_percentage=min(percentages, default=None),
        memory_mib=min(limits.memory_mib, own.memory_mib or limits.memory_mib),
    )


def _offered_share(
    own: Share,
    claim: ResourceClaim,
    result: DeviceRequestAllocationResult,
    offered: OfferedDevice,
    *,
    known: Mapping[tuple[str, str], PreparedDevice | None],
) -> Share:
    """Return how a claim shares a device as the node offers it, or as it was prepared with what its status says.

    Raises: Invalid (`ShareNotAsked`): the status has another amount than the request takes; (`SharingUnsupported`).
    """
    words = f"{claim.metadata.namespace}/{claim.metadata.name}"
    key = (result.device, result.share_id or "")
    before = known.get(key)
    if before is not None and before.consumed == consumption.amounts_of(result) != ():
        return before.share  # the node may offer the device otherwise since
    if result.share_id and key not in known:
        consumption.check(claim, result, offered, words)
    held = _held_to(own, result, offered, words) if offered.shares is not None else own
    if before is not None and (
        before.consumed or before.share != held
    ):  # a note that does not say stands by its limits
        consumption.check(claim, result, offered, words)
    return held


def _consumed(
    result: DeviceRequestAllocationResult, known: Mapping[tuple[str, str], PreparedDevice | None]
) -> consumption.Amounts:
    """Return what a claim has of a device that claims share: as it was prepared, or else as its status says."""
    if not result.share_id or result.admin_access:
        return ()
    before = known.get((result.device, result.share_id))
    return before.consumed if before is not None and before.consumed else consumption.amounts_of(result)


def _known_share(
    own: Share,
    result: DeviceRequestAllocationResult,
    known: Mapping[tuple[str, str], PreparedDevice | None],
    words: str,
) -> Share:
    """Return how a share stays shared that the claim has by an earlier Prepare, of a device that is for one claim now.

    A share id is what lets other claims join: whoever writes a claim's status could make a whole GPU two tenants'. So
    what is offered decides, and what was prepared while it was.
    Raises: Invalid (`ShareNotOffered`): the claim has no such share.
    """
    key = (result.device, result.share_id or "")
    if key in known:
        before = known[key]
        return before.share if before is not None else own
    message = f"claim {words} has a share of {result.device}, which this node offers to one claim at a time"
    hint = (
        "node.claim_shares was changed after it was allocated, or something else than a scheduler wrote its status: "
        "delete the claim, or the pod that it was made for; the next one is allocated as the node offers it"
    )
    raise errors.Invalid(message, reason=UNSHARED, hint=hint)


def _memory_mib(sharing: MPSSharing, offered: OfferedDevice) -> int | None:
    keys = (str(offered.gpu), "0")
    named = next((sharing.memory_by_gpu[key] for key in keys if key in sharing.memory_by_gpu), None)
    limit = sharing.memory_bytes if named is None else named
    return None if limit is None else limit >> 20


def _assert_distinct(devices: Collection[PreparedDevice], words: str) -> None:
    """Refuse what no container could use. Raises: Invalid."""
    seen: dict[str, list[PreparedDevice]] = {}
    for one in devices:
        if one.is_admin:
            continue
        for other in seen.get(one.gpu, ()):
            is_whole = any(two.kind in {Kind.GPU, Kind.VFIO} and not two.share_id for two in (one, other))
            if is_whole or one.ledger_name == other.ledger_name:
                message = f"claim {words} has GPU {one.gpu} twice: as {other.ledger_name} and as {one.ledger_name}"
                hint = "no scheduler allocates it so; delete the claim"
                raise errors.Invalid(message, reason="ClaimOverlaps", hint=hint)
        seen.setdefault(one.gpu, []).append(one)
    served = {one.gpu for one in devices if one.share.is_mps}
    if len(served) > 1:
        message = f"claim {words} asks for MPS over {len(served)} GPUs"
        hint = "a control daemon serves one GPU here, and a program finds one daemon: make a claim for each GPU"
        raise errors.Invalid(message, reason="SharingUnsupported", hint=hint)


def _settings_of(device: PreparedDevice) -> tuple[int | None, bool] | None:
    """Return what a device asks of its whole GPU; a MIG device shares nothing with its neighbours."""
    return (device.share.time_slice, device.share.is_mps) if device.kind is Kind.GPU else None


def _in_words(share: Share) -> str:
    if share.is_mps:
        return "MPS"
    return "none" if share.time_slice is None else f"time slices of interval {share.time_slice}"
