"""Builds the answer to Allocate: the chosen devices in the form of each device-list strategy. Pure.

Four ways lead from a device plugin to an engine, and a node may use several at once:

- `cdi-cri`: the field made for it; kubelet and engine hand CDI names on. The default, and needs nothing else.
- `cdi-annotations`: the same names in a container annotation, for engines and kubelets older than the field.
- `envvar`: NVIDIA_VISIBLE_DEVICES, read by an NVIDIA runtime or by ours. Every user who may set a pod's environment can
  say the same, so a runtime that honours it trusts every image; ours holds it to the kubelet's checkpoint
  (`plan.shim.allocation`).
- `volume-mounts`: /dev/null mounted once for each device at a path that names it; held to the checkpoint in the same
  way.

The last two are NVIDIA's own: devices of other vendors, and vGPUs, go by CDI whatever is chosen. The same devices
are always answered alike, also after a restart, since a kubelet keeps the answer.
Source: NVIDIA k8s-device-plugin documentation, "device-list-strategy", "device-id-strategy", "pass-device-specs";
CDI SPEC.md; kubelet deviceplugin/v1beta1 api.proto, ContainerAllocateResponse.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model import cdikind
from fairlead.model.container import visibledevices
from fairlead.model.device import Device
from fairlead.model.driver import SHARED_NODES, DeviceNode
from fairlead.model.gpu import Vendor
from fairlead.plan.gpu.allocation import companion, enginesupport
from fairlead.plan.gpu.offer import vgpuoffer
from fairlead.wire.cdi import translate
from fairlead.wire.proto import deviceplugin_pb2 as pb
from fairlead_cdi import annotation

ANNOTATION_PLUGIN: Final = "fairlead"
MOUNT_SOURCE: Final = "/dev/null"
ID_STRATEGIES: Final = ("uuid", "index")
ENGINE_UNKNOWN: Final = "EngineUnknown"


class Strategy(enum.Enum):
    """One way to say which devices a container gets."""

    CDI_CRI = "cdi-cri"
    CDI_ANNOTATIONS = "cdi-annotations"
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"


CDI: Final = frozenset({Strategy.CDI_CRI, Strategy.CDI_ANNOTATIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateOptions:
    """How this node answers."""

    strategies: frozenset[Strategy] = frozenset({Strategy.CDI_CRI})
    ids: str = "uuid"
    """Member of `ID_STRATEGIES`: how devices are named in the answer; the kubelet's ids stay UUIDs."""
    passes_device_specs: bool = False
    """Also list the device nodes themselves, for a kubelet or engine that looks for them in the answer."""
    beside: companion.Wanted = companion.NOTHING
    """What containers get beside NVIDIA's GPUs."""


DEFAULT: Final = AllocateOptions()


def find_problem(options: AllocateOptions, engines: Sequence[str]) -> errors.Unavailable | None:
    """Return why containers might start without their devices if they were handed over this way.

    Args: engines: those that may serve the kubelet, in the words of a Node's `containerRuntimeVersion`; an engine of
          a name that is not known is no problem, none at all is one.
    """
    if not options.strategies <= CDI or options.passes_device_specs:
        return None
    if not engines:
        message = (
            "it is not known which container engine serves this node's kubelet, and in which release: an old one "
            "would start containers without their devices"
        )
        hint = (
            "let the agent read the Node object or the engine's socket, "
            "or state the engine: FAIRLEAD_NODE_ENGINE=containerd://2.2.1"
        )
        return errors.Unavailable(message, reason=ENGINE_UNKNOWN, hint=hint)
    for engine in engines:
        try:
            enginesupport.check_node(engine)
        except errors.Unavailable as problem:
            return problem
    return None


def parse_strategies(text: str) -> frozenset[Strategy]:
    """Return the strategies of a comma-separated list. Raises: Invalid: none, or one that there is not."""
    offered = {one.value: one for one in Strategy}
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = next((word for word in words if word not in offered), None)
    if unknown is not None or not words:
        message = f'device list strategy "{unknown or text}" is not offered (offered: {", ".join(offered)})'
        hint = "set FAIRLEAD_NODE_DEVICE_LIST_STRATEGY or --node-device-list-strategy"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    return frozenset(offered[word] for word in words)


@translate.cdi_errors
def plan_answer(
    devices: Sequence[Device],
    *,
    resource: str,
    vendor: Vendor,
    options: AllocateOptions,
    nodes: Mapping[str, DeviceNode],
) -> pb.ContainerAllocateResponse:
    """Return the answer for one container.

    Args:    devices: those granted, in advertised order; replicas of one device are that device once.
             nodes: the machine's device nodes by container path, for `passes_device_specs` and `beside`.
    Raises:  Unavailable: IMEX channels are required and absent.
    """
    answer = pb.ContainerAllocateResponse()
    if not devices:
        return answer
    distinct = {device.cdi_name: device for device in devices}.values()
    ids = [_id(device, options) for device in distinct]
    names = [_cdi_name(device, options) for device in distinct]
    strategies = options.strategies
    lent = [device for device in distinct if device.vgpu or device.slot]
    if lent:
        # Of slots those that are named as KubeVirt's launcher looks for them: by PCI address.
        named = [device.vgpu or device.slot for device in lent if device.vgpu or ":" in device.slot]
        answer.envs.update(vgpuoffer.variables(resource, named))
    is_nvidias = vendor is Vendor.NVIDIA and not lent
    beside = companion.choose(options.beside, nodes) if is_nvidias else companion.Given()
    names += beside.names
    if not is_nvidias:
        strategies = strategies & CDI or frozenset({Strategy.CDI_CRI})
    _name(answer, strategies, resource=resource, ids=ids, names=names, beside=beside)
    if options.passes_device_specs:
        shared = vgpuoffer.SHARED_NODES if lent else SHARED_NODES[vendor]
        answer.devices.extend(_device_specs(distinct, shared, nodes))
    return answer


def _name(
    answer: pb.ContainerAllocateResponse,
    strategies: Collection[Strategy],
    *,
    resource: str,
    ids: Sequence[str],
    names: Sequence[str],
    beside: companion.Given,
) -> None:
    """Name the devices in the answer in every way of the strategies. Args: names: of CDI, companions' too."""
    if Strategy.CDI_CRI in strategies:
        answer.cdi_devices.extend(pb.CDIDevice(name=name) for name in names)
    if Strategy.CDI_ANNOTATIONS in strategies:
        answer.annotations[_key(resource, ids)] = annotation.emit_value(names)
    if Strategy.ENVVAR in strategies:
        answer.envs[visibledevices.VARIABLE] = ",".join(ids)
        if beside.channels:
            answer.envs[companion.CHANNELS_VARIABLE] = ",".join(map(str, beside.channels))
    if Strategy.VOLUME_MOUNTS in strategies:
        root = visibledevices.VOLUME_ROOT
        answer.envs[visibledevices.VARIABLE] = root.rstrip("/")
        answer.mounts.extend(
            pb.Mount(container_path=f"{root}{one}", host_path=MOUNT_SOURCE, read_only=True)
            for one in (*ids, *(f"imex/{channel}" for channel in beside.channels))
        )
    if set(strategies) - CDI:
        answer.envs.update(beside.variables)


def _id(device: Device, options: AllocateOptions) -> str:
    return device.index if options.ids == "index" and device.index else device.name


def _cdi_name(device: Device, options: AllocateOptions) -> str:
    return cdikind.qualified(cdikind.kind_of(device.cdi_name), _id(device, options))


def _key(resource: str, ids: Sequence[str]) -> str:
    """Return an annotation key that no other resource's answer for the same container has."""
    own = hashlib.sha256(f"{resource}={','.join(ids)}".encode()).hexdigest()[:16]
    return annotation.emit_key(ANNOTATION_PLUGIN, own)


def _device_specs(
    devices: Iterable[Device], shared: Iterable[str], nodes: Mapping[str, DeviceNode]
) -> list[pb.DeviceSpec]:
    """List the nodes that all containers need and those of the devices, each once, as far as they are there."""
    paths = dict.fromkeys([*shared, *(path for device in devices for path in device.nodes)])
    return [
        pb.DeviceSpec(container_path=path, host_path=nodes[path].host_path, permissions="rw")
        for path in paths
        if path in nodes
    ]
