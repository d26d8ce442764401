"""Finds what a container is entitled to: devices by its allocation, everything else by its runtime spec.

Devices come from, in this order: CDI names the asker gave; the kubelet of this node, asked over PodResources (the
embedded one and a real one alike); the embedded kubelet's checkpoint on disk, for its own containers; the runtime spec,
for all others, which says what the runtime was given and not who allowed it. The source is named in every report.
A device of the node that the runtime spec allows and no source names is not an entitlement. A container that the
embedded kubelet made is judged by its allocation alone: its runtime spec grants nothing. Where no source
answers, the report says so as a doubt.

No label and no annotation says what a container holds. Podman copies those of an image, so they do not even say who it
is, but for those of the embedded kubelet's own containers: it writes them over the image's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib import parse

from fairlead import errors
from fairlead.model import cdikind, replica
from fairlead.model.devicerule import DeviceRule, DeviceRules
from fairlead.node.isolation import attach
from fairlead.plan.audit import Entitlement, GrantedNode
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.cdi import translate
from fairlead.wire.kubernetes import names
from fairlead.wire.oci import devicerule as wire
from fairlead_cdi import directory, oci

_IDENTITIES: Final = (
    (names.POD_NAMESPACE, names.POD_NAME, names.CONTAINER_NAME),
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
)
"""Labels or annotations that name pod and container: of the embedded kubelet and cri-o, and of containerd."""
SPEC: Final = "runtime spec"
"""Source of an entitlement that is read from the runtime spec, because neither kubelet nor checkpoint has it."""
CHECKPOINT: Final = "checkpoint"
"""Source of what the embedded kubelet has written down."""
NOTHING: Final = "no source"
"""Source for a container of ours of which neither kubelet nor checkpoint says anything: it cannot be judged."""
_MANAGER: Final = "io.container.manager"
_CRIO_ID: Final = "io.kubernetes.cri-o.ContainerID"
"""Podman and CRI-O write the first; the second, the container's id, is CRI-O's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a container before the probe enters it."""

    config: Mapping[str, Any] | None = None
    """Its runtime spec."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """As our engine says; empty where it did not answer or the container is not its own."""
    id: str = ""
    """The runtime's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCheckpoint:
    """What the embedded kubelet's checkpoint says, as another process reads it."""

    home: str = ""
    """Id of the state folder whose containers it lists."""
    held: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By pod uid and container: device ids by resource."""
    claimed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By pod uid: CDI names that drivers gave for the pod's claims; which of its containers has which is not said."""
    named: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """By pod uid and container: CDI devices that were asked for by name, as the stored pod has them."""
    problem: str = ""
    """Why it says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSources:
    """Who holds what, and what the devices are."""

    registry: directory.Registry
    holdings: tuple[Holding, ...] | None = None
    """None: no kubelet answered."""
    written: KubeletCheckpoint = field(default_factory=lambda: KubeletCheckpoint(problem="no checkpoint was read"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An entitlement, and who says so."""

    entitlement: Entitlement = field(default_factory=Entitlement)
    source: str
    names: tuple[str, ...] = ()
    """CDI names of the devices; empty where the runtime spec alone was asked."""
    doubt: str = ""
    """Why it is not known what it is entitled to; empty: it is known."""


@translate.cdi_errors
def find(subject: Subject, sources: AllocationSources, *, asked: Sequence[str] = ()) -> Found:
    """Return what a container is entitled to.

    Args:    asked: CDI names that count instead of any source.
    Raises:  RequestError, Unavailable, ProtocolError: a name that no spec defines, or whose node is not on this host.
    """
    home = _mark(subject, names.HOME)
    source, held = _held(subject, sources, asked, home=home)
    if held is None and home:
        return Found(source=NOTHING, doubt=source)
    if held is None:
        return Found(entitlement=by_spec(subject.config), source=SPEC)
    granted = attach.nodes_of(held, sources.registry)
    if home:
        return Found(entitlement=Entitlement(granted=granted), source=source, names=tuple(held))
    base = _rules(subject.config).changed(deny=[_whole(node) for node in attach.known_nodes(sources.registry)])
    return Found(entitlement=Entitlement(granted=granted, base=base), source=source, names=tuple(held))


def _whole(node: GrantedNode) -> DeviceRule:
    return DeviceRule(kind=node.kind, major=node.major, minor=node.minor, access="rw")


def _held(
    subject: Subject, sources: AllocationSources, asked: Sequence[str], *, home: str | None
) -> tuple[str, list[str] | None]:
    """Return who was asked, and the CDI names that they say; None: not known, and the first is why."""
    if asked:
        return "--device", list(asked)
    if home and home != sources.written.home:
        # No image knows the home id of a machine, so an annotation that names another one may come from any image.
        known = sources.written.home or sources.written.problem or "not known"
        return f"its home id is {home}, and this machine's is {known}", None
    who = identity(subject)
    if who is not None and sources.holdings is not None:
        mine = [one for one in sources.holdings if (one.namespace, one.pod, one.container) == who]
        return "kubelet", cdi_names({one.resource: one.ids for one in mine}, sources.registry)
    return _written(subject, sources) if home else ("", None)


def _written(subject: Subject, sources: AllocationSources) -> tuple[str, list[str] | None]:
    """Return what the checkpoint says of a container of ours; as `_held`."""
    doubt = "no kubelet answers" if sources.holdings is None else "nothing says which container of which pod it is"
    if sources.written.problem:
        return f"{doubt}, and {sources.written.problem}", None
    place = (_mark(subject, names.POD_UID) or "", _mark(subject, names.CONTAINER_NAME) or "")
    if not all(place):
        return f"{doubt}, and nothing says which entry of the checkpoint is its own", None
    claimed = {"claims": sources.written.claimed.get(place[0], ())}
    names_of = dict[str, tuple[str, ...]]()  # by kind, as the kubelet lists them
    for name in sources.written.named.get(place, ()):
        names_of[cdikind.kind_of(name)] = (*names_of.get(cdikind.kind_of(name), ()), name)
    return CHECKPOINT, cdi_names({**sources.written.held.get(place, {}), **claimed, **names_of}, sources.registry)


def _mark(subject: Subject, key: str) -> str | None:
    """Return one of our labels, from the engine or else from the annotations that our engine copies them to."""
    if subject.labels:
        return subject.labels.get(key)
    notes = oci.object_at(dict(subject.config or {}), "annotations", "annotations")
    # Percent-encoded by `engine.podman.args`: podman takes no quotes there.
    return parse.unquote(str(notes[key])) if key in notes else None


@translate.cdi_errors
def identity(subject: Subject) -> tuple[str, str, str] | None:
    """Return namespace, pod and container, from labels or from the annotations of the runtime spec.

    None where they may come from an image: our engine, podman, copies its annotations, except over those that our
    kubelet writes.
    """
    notes = oci.object_at(dict(subject.config or {}), "annotations", "annotations")
    is_of_engine = bool(subject.labels) or (
        _MANAGER in notes and not (subject.id and notes.get(_CRIO_ID) == subject.id)
    )
    if is_of_engine:
        own = [_mark(subject, key) for key in (names.HOME, *_IDENTITIES[0])]
        return (own[1], own[2], own[3]) if own[0] and own[1] and own[2] and own[3] else None
    for keys in _IDENTITIES:
        for place in (subject.labels, notes):
            if all(place.get(key) for key in keys):
                namespace, pod, container = (str(place[key]) for key in keys)
                return namespace, pod, container
    return None


def cdi_names(devices: Mapping[str, Iterable[str]], registry: directory.Registry) -> list[str]:
    """Return the CDI names of device ids by resource.

    The agent's own specs go first, since that is what it answers; then the kind that is called like the resource, as
    other plugins have it; then the one spec that has the id. What a DRA driver gave stands under CDI names among the
    ids, and these alone count.

    Raises: NotFound (`DeviceUnknown`): no spec on this machine has one of them.
    """
    found: list[str] = []
    for resource, ids in devices.items():
        listed = tuple(ids)
        qualified = [one for one in listed if one in registry.devices and "=" in one]
        found += qualified
        for one in listed if not qualified else ():
            name = replica.origin(one)
            usual = [cdikind.qualified(kind, name) for kind in (*cdikind.ALLOCATED.values(), resource)]
            own = next((known for known in usual if known in registry.devices), None)
            others = [known for known in registry.devices if cdikind.device_of(known) == name]
            if own is None and len(others) != 1:
                message = f'device "{one}" of {resource} is in none of the CDI specs read'
                hint = "`fairlead cdi list` shows them; --spec-dir names another folder"
                raise errors.NotFound(message, reason="DeviceUnknown", hint=hint)
            found.append(own or others[0])
    return list(dict.fromkeys(found))


def _rules(config: Mapping[str, Any] | None) -> DeviceRules:
    linux = oci.object_at(dict(config or {}), "linux", "linux")
    resources = oci.object_at(linux, "resources", "linux.resources")
    return wire.parse_oci(oci.list_at(resources, "devices", "linux.resources.devices"))


@translate.cdi_errors
def by_spec(config: Mapping[str, Any] | None) -> Entitlement:
    """Return what a runtime spec grants. Args: config: None: it is not known, and grants nothing."""
    rules = _rules(config)
    linux = oci.object_at(dict(config or {}), "linux", "linux")
    nodes = [
        attach.node_of(entry, rules, source="its runtime spec") for entry in oci.list_at(linux, "devices", "devices")
    ]
    # A node may be listed without a rule that opens it; then it is not a grant.
    granted = [node for node in nodes if node is not None and set("rw") & set(rules.access(*node.number))]
    return Entitlement(granted=tuple(granted), base=rules)
