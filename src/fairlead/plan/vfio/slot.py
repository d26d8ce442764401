"""Decides what a pod may ask for of GPUs that are passed through: the slots of a machine, and their names. Pure.

A slot is a set of GPUs that goes to one tenant. Which sets of several there are says the NVLink fabric, by its
partitions; each GPU is a slot of its own besides. A slot is one device of the kubelet's and one device of a CDI spec,
whose kind is the resource's name and whose name is the device's id: Kata resolves `RESOURCE=ID` and nothing else.

Ids are kept over reboots, rebinding and other PCI addresses, since a kubelet keeps them in its checkpoint: by module
number where the board has one, else by the GPU's identity. Two schemes are others' and have their ids: `index` is that
of the published DaemonSet that counts GPUs, `kubevirt` that of NVIDIA's KubeVirt plugin, whose launcher reads PCI
addresses from a variable.
Source: kata-containers src/runtime/pkg/containerd-shim-v2/device_cold_plug.go; NVIDIA kubevirt-gpu-device-plugin and
sandbox-device-plugin, resource names and variables; KubeVirt user guide, "Host Devices Assignment".
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors, settings
from fairlead.model import cdikind
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import DeviceID

_DOMAINS: Final = {Vendor.NVIDIA: "nvidia.com", Vendor.AMD: "amd.com", Vendor.INTEL: "intel.com"}
_FOREIGN: Final = re.compile(r"[^a-z0-9]+")
_UNNAMED: Final = re.compile(r"[^A-Z0-9_.]+")
_ALIAS: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LONGEST: Final = 63
"""Of a resource's name behind the domain, and of a CDI class."""
PGPU: Final = "pgpu"
"""NVIDIA's name for GPUs of its Kata plugin, where P_GPU_ALIAS says no other."""


IOMMUFD: Final = "iommufd"
OFF: Final = "off"
"""The value of `node.vfio` with which no GPU is passed through."""
UNKEPT: Final = (
    "no possession, no node kept open, no reset between tenants: a machine that outlives its pod shares its GPU with "
    "the next tenant's, who finds what it left"
)
"""What is not kept where GPUs are passed through without a ledger."""


class Scheme(enum.Enum):
    """Whose names slots have, in the words of `node.vfio_names`."""

    SLOTS = "slots"
    """Ours: `nvidia.com/h100-sxm5-80gb-x1`, a resource for each model and size."""
    INDEX = "index"
    """`nvidia.com/gpu` with the ids 0, 1, … in the order of PCI addresses."""
    KATA = "kata"
    """`nvidia.com/pgpu`, as NVIDIA's plugin for Kata."""
    KUBEVIRT = "kubevirt"
    """`nvidia.com/GH100_H100_SXM5_80GB` with PCI addresses as ids, as NVIDIA's plugin for KubeVirt."""


_NVIDIAS: Final = frozenset({Scheme.KATA, Scheme.KUBEVIRT})
"""Schemes of NVIDIA's plugins, which take NVSWITCH_ALIAS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one pod gets with one device of a resource."""

    resource: str
    id: DeviceID
    gpus: tuple[PassthroughGPU, ...]
    """In the order of module numbers, else of PCI addresses."""
    has_shared_nodes: bool = True
    """Whether its CDI device names `/dev/vfio/vfio` too; the published DaemonSet's names the group's node alone."""
    with_iommufd: bool = False
    """Whether its users go by iommufd, else by IOMMU groups."""

    @property
    def problem(self) -> str:
        """Return why it cannot be handed out; empty: it can."""
        without = next((gpu.address for gpu in self.gpus if not self._nodes(gpu)), "")
        way = "iommufd (/dev/iommu, /dev/vfio/devices)" if self.with_iommufd else "groups (/dev/vfio/vfio, /dev/vfio/N)"
        missing = f"{without} has no nodes by {way}: see node.vfio_nodes" if without else ""
        return next((gpu.problem for gpu in self.gpus if gpu.problem), missing)

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """Return the nodes that its user gets, each once; the shared ones first."""
        shared = (node for gpu in self.gpus for node in self._nodes(gpu)[:-1] if self.has_shared_nodes)
        own = (node for gpu in self.gpus for node in self._nodes(gpu)[-1:])
        return tuple({node.path: node for node in (*shared, *own)}.values())

    def _nodes(self, gpu: PassthroughGPU) -> tuple[DeviceNode, ...]:
        return gpu.iommufd_nodes if self.with_iommufd else gpu.group_nodes

    @property
    def numa_node(self) -> int | None:
        """Return the NUMA node of all its GPUs; None: they have several, or none."""
        nodes = {gpu.numa_node for gpu in self.gpus}
        return nodes.pop() if len(nodes) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How the slots of a node are named, by its settings."""

    scheme: Scheme = Scheme.SLOTS
    alias: str = ""
    """Another name for `kata`'s resource, behind the domain; empty: the usual one."""
    with_iommufd: bool = False
    """Whether users get the nodes of iommufd, else those of IOMMU groups."""
    switches: str = cdikind.SWITCHES
    """Resource of the NVSwitches, and the kind of their CDI spec."""

    def slots(self, gpus: Iterable[PassthroughGPU], partitions: Iterable[Sequence[int]] = ()) -> tuple[Slot, ...]:
        """Return the slots of a machine, by resource: one for each GPU in PCI order, then one for each partition.

        Args: partitions: module numbers of each NVLink partition of several GPUs. They are slots under our own names
              alone; other schemes have no names for them.
        """
        ordered = _checked(sorted(gpus, key=lambda gpu: _by_address(gpu.address)))
        found = [
            Slot(
                resource=_resource(gpu, self),
                id=_id(gpu, self.scheme, at),
                gpus=(gpu,),
                has_shared_nodes=self.scheme is not Scheme.INDEX,
                with_iommufd=self.with_iommufd,
            )
            for at, gpu in enumerate(ordered)
        ]
        if self.scheme is Scheme.SLOTS:
            found += self._of_partitions(ordered, partitions)
        return tuple(sorted(found, key=lambda slot: slot.resource))  # sorting is stable: PCI order within a resource

    def _of_partitions(self, gpus: Iterable[PassthroughGPU], partitions: Iterable[Sequence[int]]) -> Iterator[Slot]:
        """Yield the slots of partitions all of whose GPUs are here, of one model and no other board's."""
        by_module = {gpu.module: gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA and gpu.module is not None}
        for modules in partitions:
            members = tuple(by_module[one] for one in sorted(modules) if one in by_module)
            if len(members) == len(modules) > 1 and len({gpu.model for gpu in members}) == 1:
                yield Slot(
                    resource=f"{_DOMAINS[Vendor.NVIDIA]}/{_slug(members[0].model)}-x{len(members)}",
                    id=id_of(modules),
                    gpus=members,
                    with_iommufd=self.with_iommufd,
                )


def id_of(modules: Iterable[int]) -> DeviceID:
    """Return the id of the slot of some modules under our own names, `x2-1.3`."""
    ordered = sorted(modules)
    return DeviceID(f"x{len(ordered)}-{'.'.join(map(str, ordered))}")


def naming_of(chosen: settings.NodeSettings) -> Naming | None:
    """Return how slots are named by `node.vfio` and the settings beside it; None: nothing is passed through.

    Raises: Invalid: an alias cannot be the name of its resource, or no resource is named by it.
    """
    alias = chosen.vfio_alias
    _check_alias("node.vfio_alias", alias)
    if cdikind.SWITCH_WORD in alias.lower():
        message = (
            f'node.vfio_alias "{alias}" has "{cdikind.SWITCH_WORD}" in it, by which tenants are refused NVSwitches'
        )
        raise errors.Invalid(message, reason="SettingInvalid", hint="another name for the GPUs, such as pgpu")
    switches = switch_resource(chosen)
    if chosen.vfio == OFF:
        return None
    if alias and Scheme(chosen.vfio_names) is not Scheme.KATA:
        message = (
            f'node.vfio_alias is "{alias}", and with node.vfio_names={chosen.vfio_names} no resource is named by it'
        )
        hint = "set node.vfio_names=kata, or leave node.vfio_alias out"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    return Naming(
        scheme=Scheme(chosen.vfio_names), alias=alias, with_iommufd=chosen.vfio_nodes == IOMMUFD, switches=switches
    )


def switch_resource(chosen: settings.NodeSettings) -> str:
    """Return the resource of NVSwitches that are passed through, by `node.vfio_names` and `node.vfio_switch_alias`.

    Admission refuses tenants' pods whatever has the word in its name: it cannot know how each node names its switches.
    Raises: Invalid: the alias has not the word, cannot be a resource's name, or goes with names that are not NVIDIA's.
    """
    alias = chosen.vfio_switch_alias
    if not alias:
        return cdikind.SWITCHES
    setting = "node.vfio_switch_alias"
    _check_alias(setting, alias)
    if cdikind.SWITCH_WORD not in alias.lower():
        message = f'{setting} "{alias}" has no "{cdikind.SWITCH_WORD}" in it, by which tenants are refused NVSwitches'
        hint = "for example nvswitch-h100; empty: nvswitch"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    if Scheme(chosen.vfio_names) not in _NVIDIAS:
        message = (
            f'{setting} is "{alias}", and node.vfio_names={chosen.vfio_names} is not the names of NVIDIA\'s plugins'
        )
        hint = f"set node.vfio_names=kata or kubevirt, or leave {setting} out: {cdikind.SWITCHES}"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    return f"{_DOMAINS[Vendor.NVIDIA]}/{alias}"


def _check_alias(setting: str, alias: str) -> None:
    if alias and not _ALIAS.fullmatch(alias):
        message = f'{setting} "{errors.readable(alias[:200])}" is no name of a resource'
        hint = "a letter, then at most 61 letters, digits, '-', '_' and '.', then a letter or digit"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)


def _checked(gpus: Sequence[PassthroughGPU]) -> tuple[PassthroughGPU, ...]:
    """Return the GPUs with what contradicts itself kept back: two with one module number, or with one identity.

    Neither is given away until a person has looked: which of them a tenant would get is not known.
    """
    modules = Counter(gpu.module for gpu in gpus if gpu.module is not None)
    keys = Counter(gpu.key for gpu in gpus)
    found = list[PassthroughGPU]()
    for gpu in gpus:
        problem = gpu.problem
        if keys[gpu.key] > 1:
            problem = f"{gpu.address} says that it is {gpu.key}, and so does another GPU of this machine"
        elif gpu.module is not None and modules[gpu.module] > 1:
            problem = problem or f"{gpu.address} says that it is module {gpu.module}, and so does another GPU"
            gpu = dataclasses.replace(gpu, module=None)  # noqa: PLW2901  (its id must be its own)
        found.append(dataclasses.replace(gpu, problem=problem))
    return tuple(found)


def by_resource(slots: Iterable[Slot]) -> Mapping[str, tuple[Slot, ...]]:
    """Return the slots of each resource, in order."""
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.resource, []).append(slot)
    return {resource: tuple(items) for resource, items in found.items()}


def _resource(gpu: PassthroughGPU, naming: Naming) -> str:
    domain = _DOMAINS[gpu.vendor]
    match naming.scheme:
        case Scheme.INDEX:
            return f"{domain}/gpu"
        case Scheme.KATA:
            return f"{domain}/{naming.alias or PGPU}"
        case Scheme.KUBEVIRT:
            return f"{domain}/{kubevirt_name(gpu.model) or PGPU}"
        case Scheme.SLOTS:
            return f"{domain}/{_slug(gpu.model)}-x1"


def _id(gpu: PassthroughGPU, scheme: Scheme, at: int) -> DeviceID:
    if scheme is Scheme.INDEX:
        return DeviceID(str(at))
    if scheme is Scheme.KUBEVIRT:
        return DeviceID(gpu.address)
    return DeviceID(f"x1-{gpu.module}" if gpu.module is not None else f"x1-{gpu.key}")


def kubevirt_name(model: str) -> str:
    """Return a model as NVIDIA's KubeVirt plugin writes it in a resource; empty: nothing of it may stand there.

    In upper case, `/`, `.` and runs of blanks as `_`, and without whatever else is no letter, digit or `_`.
    """
    text = re.sub(r"\s+", "_", re.sub(r"[/.]", "_", model.strip().upper()))
    return _with_letter(_UNNAMED.sub("", text), "GPU_").strip("_.")


def _slug(model: str) -> str:
    """Return a model in a resource of ours: what is in brackets, as people call it, else all of it."""
    _, bracket, inner = model.partition("[")
    text = inner.partition("]")[0] if bracket else model
    return _with_letter(_FOREIGN.sub("-", text.lower()).strip("-"), "gpu-").strip("-") or PGPU


def _with_letter(name: str, start: str) -> str:
    """Return a name that begins with a letter, as the class of a CDI kind must, with room for `-x16` behind it.

    Several engines panic on a class of one character.
    """
    own = name.strip("-_.")
    is_whole = not own or (own[0].isalpha() and len(own) > 1)
    return (own if is_whole else f"{start}{own}")[: _LONGEST - len("-x16")]


def _by_address(address: str) -> tuple[int, ...]:
    """Return what PCI addresses are sorted by: numbers, since domains have four digits or more."""
    try:
        return tuple(int(part, 16) for part in re.split(r"[:.]", address))
    except ValueError:
        return ()
