"""What Kata's shim does with a pod's devices before its machine boots, as Kata's stand-in does it. No process, no QEMU.

Each function names the place in Kata's source that it follows (kata-containers 4.1.0, `src/runtime`), read for what it
does; none of its text is here. The stand-in shares no code with the product whose contract it holds: CDI files are read
by it, not by `fairlead_cdi`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NAME: Final = "io.kubernetes.cri.sandbox-name"
NAMESPACE: Final = "io.kubernetes.cri.sandbox-namespace"
KIND: Final = "io.kubernetes.cri.container-type"
SANDBOX: Final = "io.kubernetes.cri.sandbox-id"
_CDI: Final = "cdi.k8s.io/"
_OVERRIDES: Final = "io.katacontainers.config.hypervisor."
_KATA: Final = "io.katacontainers."
NO_PORT: Final = "no-port"
ROOT_PORT: Final = "root-port"
_PORTS: Final = (NO_PORT, "bridge-port", ROOT_PORT, "switch-port")
MOST_PORTS: Final = 16
_BRIDGES: Final = ("0x0600", "0x0604")
_GET: Final = "/v1.PodResourcesLister/Get"
_LARGEST: Final = 16 << 20
_NODE: Final = re.compile(r"/dev/vfio/(?:(?P<group>\d+)|devices/vfio(?P<device>\d+))")
_CONTAINER: Final = "/dev/vfio/vfio"
CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")


class Refused(Exception):
    """Kata would refuse this, and so does its stand-in."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is read of Kata's configuration; names are its own keys."""

    path: str
    kernel: str
    initrd: str
    kernel_params: str
    default_memory: int
    default_vcpus: int
    enable_hugepages: bool
    cold_plug_vfio: str
    hot_plug_vfio: str
    pcie_root_port: int
    enable_annotations: tuple[str, ...]
    pod_resource_api_sock: str
    dial_timeout: float
    accelerator: str
    """Not Kata's, which has KVM alone: `tcg` where there is none; empty: KVM where it can be opened."""
    root: str
    """Not Kata's: where `dev`, `sys` and `cdi` of a made-up machine lie; empty: those of this one."""
    stops: str
    """Not Kata's: the folder of `stops`; empty: none."""


def load_config(path: Path) -> Config:
    """Return a configuration. Raises: Refused: Kata takes no such one. Source: pkg/katautils/config.go."""
    document = tomllib.loads(path.read_text())
    machine: dict[str, Any] = document.get("hypervisor", {}).get("qemu", {})
    runtime: dict[str, Any] = document.get("runtime", {})
    agent: dict[str, Any] = document.get("agent", {}).get("kata", {})
    own: dict[str, Any] = document.get("stand_in", {})
    found = Config(
        path=machine["path"],
        kernel=machine["kernel"],
        initrd=machine["initrd"],
        kernel_params=machine.get("kernel_params", ""),
        default_memory=int(machine.get("default_memory", 8192)),
        default_vcpus=int(machine.get("default_vcpus", 1)),
        enable_hugepages=bool(machine.get("enable_hugepages", False)),
        cold_plug_vfio=str(machine.get("cold_plug_vfio", NO_PORT)),
        hot_plug_vfio=str(machine.get("hot_plug_vfio", NO_PORT)),
        pcie_root_port=int(machine.get("pcie_root_port", 0)),
        enable_annotations=tuple(machine.get("enable_annotations", ())),
        pod_resource_api_sock=str(runtime.get("pod_resource_api_sock", "")),
        dial_timeout=float(agent.get("dial_timeout", 45)),
        accelerator=str(own.get("accelerator", "")),
        root=str(own.get("root", "")),
        stops=str(own.get("stops", "")),
    )
    _check_ports(found)
    return found


def _check_ports(config: Config) -> None:
    """Source: pkg/katautils/config.go, checkPCIeConfig; virtcontainers/qemu.go, maxPCIeRootPort."""
    cold, hot = config.cold_plug_vfio, config.hot_plug_vfio
    for one in (cold, hot):
        if one not in _PORTS:
            raise Refused(f"vfio port {one!r} is not one of {', '.join(_PORTS)}")
    if NO_PORT not in (cold, hot):
        raise Refused(f"cold_plug_vfio is {cold} and hot_plug_vfio is {hot}: only one of them can be set")
    if cold not in (NO_PORT, ROOT_PORT) or hot != NO_PORT:
        # Kata could; this stand-in has no other port, and says so instead of doing another thing.
        raise Refused(f"Kata's stand-in plugs devices in cold and into root ports only ({cold}, {hot})")
    if config.pcie_root_port > MOST_PORTS:
        raise Refused(f"pcie_root_port is {config.pcie_root_port}, and QEMU's machine has {MOST_PORTS} at most")


def check_annotations(annotations: Mapping[str, str], config: Config) -> None:
    """Refuse an override that is not enabled. Source: pkg/oci/utils.go, addAnnotations.

    Kata would take some others of its prefix (`io.katacontainers.config_path` chooses the configuration). Whoever lets
    those through has lost; the stand-in obeys none of them, and refuses in place of ignoring.
    """
    for key in annotations:
        enabled = any(re.search(one, key.removeprefix(_OVERRIDES)) for one in config.enable_annotations)
        if key.startswith(_KATA) and not (key.startswith(_OVERRIDES) and enabled):
            raise Refused(f"annotation {key} is not enabled")


def ask_devices(annotations: Mapping[str, str], config: Config) -> list[str]:
    """Return the CDI names of a pod's devices. Source: pkg/containerd-shim-v2/device_cold_plug.go.

    Raises: Refused: the kubelet does not say.
    """
    if config.cold_plug_vfio == NO_PORT:  # coldPlugDevices: not enabled, nothing is asked
        return []
    socket = config.pod_resource_api_sock
    if socket and Path(socket).is_socket():  # kubeletPodResourceSocketAvailable
        return _ask_kubelet(socket, annotations.get(NAMESPACE, ""), annotations.get(NAME, ""))
    # Without the socket Kata believes the annotations: config.WithCDI.
    return [name for key in sorted(annotations) if key.startswith(_CDI) for name in annotations[key].split(",")]


def _ask_kubelet(socket: str, namespace: str, name: str) -> list[str]:
    """Source: the same file, getDeviceSpec and formatCDIDevIDs: `<ResourceName>=<DeviceID>`, in the kubelet's order."""
    import grpc

    from fairlead.wire.proto import podresources_pb2 as pb

    request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
    with grpc.insecure_channel(f"unix://{socket}", options=[("grpc.max_receive_message_length", _LARGEST)]) as channel:
        call = channel.unary_unary(
            _GET,
            request_serializer=pb.GetPodResourcesRequest.SerializeToString,
            response_deserializer=pb.GetPodResourcesResponse.FromString,
        )
        try:
            answer = call(request, timeout=60)
        except grpc.RpcError as error:
            what = f"{error.code().name}: {error.details()}"
            raise Refused(f"cold plug: the kubelet does not say which devices {namespace}/{name} has: {what}") from None
    if not answer.HasField("pod_resources"):
        raise Refused("cold plug: the kubelet's answer has no pod")
    names = [
        f"{devices.resource_name}={device}"
        for container in answer.pod_resources.containers
        for devices in container.devices  # DynamicResources are not read by 4.1.0: kata-containers #13322
        for device in devices.device_ids
    ]
    return list(dict.fromkeys(names))


def resolve(names: Sequence[str], folders: Sequence[str] = CDI_FOLDERS) -> list[str]:
    """Return the VFIO nodes of CDI devices, in order.

    Source: pkg/device/config, InjectCDIDevices, over CDI's own cache: a later folder wins, two files of one folder that
    name the same device conflict, and neither counts. Nodes of other kinds are left to the container.
    Raises: Refused: a name that no CDI file has.
    """
    known: dict[str, list[str] | None] = {}
    for folder in folders:
        found: dict[str, list[str] | None] = {}
        for path in sorted(Path(folder).glob("*.json")):
            for name, nodes in _read_spec(path).items():
                found[name] = None if name in found else nodes
        known |= found
    if missing := [name for name in names if known.get(name) is None]:
        raise Refused(f"cold plug: unresolvable CDI devices {', '.join(missing)}")
    return list(dict.fromkeys(node for name in names for node in known[name] or ()))


def _read_spec(path: Path) -> dict[str, list[str]]:
    try:
        document = json.loads(path.read_text())
        return {
            f"{document['kind']}={device['name']}": [
                node.get("hostPath") or node["path"] for node in device["containerEdits"].get("deviceNodes", ())
            ]
            for device in document["devices"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # CDI's cache keeps the error beside the file and goes on


@dataclass(frozen=True, kw_only=True)
class Function:
    """One PCI function that goes into the machine."""

    address: str
    vendor: str
    device: str
    node: str
    """By which it was named."""
    by_iommufd: bool


def functions(nodes: Sequence[str], sysfs: Path = Path("/sys")) -> list[Function]:
    """Return the functions behind VFIO nodes. Source: pkg/device/drivers/vfio.go and utils.go.

    A group brings all its functions but bridges, whose classes are compared exactly (0600, 0604), so that NVSwitches
    (0680) come along. Raises: Refused: a node that is of no function here.
    """
    found: dict[str, Function] = {}
    for node in nodes:
        match = _NODE.fullmatch(node)
        if match is None:
            continue  # /dev/vfio/vfio, or no VFIO node: nothing is plugged in for it
        by_iommufd = match["group"] is None
        if by_iommufd:
            folders = [(sysfs / "class/vfio-dev" / f"vfio{match['device']}" / "device").resolve()]
        else:
            folders = sorted((sysfs / "kernel/iommu_groups" / match["group"] / "devices").glob("*"))
        folders = [one for one in folders if (one / "class").is_file()]
        if not folders:
            raise Refused(f"{node} is no device of this node")
        for folder in folders:
            if _word(folder / "class")[:6] in _BRIDGES:
                continue
            found.setdefault(
                folder.name,
                Function(
                    address=folder.name,
                    vendor=_word(folder / "vendor"),
                    device=_word(folder / "device"),
                    node=node,
                    by_iommufd=by_iommufd,
                ),
            )
    return list(found.values())


def _word(path: Path) -> str:
    return path.read_text().strip()


def check_container(devices: Sequence[Mapping[str, Any]], plugged: Sequence[str]) -> None:
    """Refuse a container's VFIO node that its machine was not made with: hot_plug_vfio is `no-port`.

    Source: virtcontainers/sandbox.go, AddDevice, and pkg/device/manager: a device that the sandbox has is found again,
    another one would be plugged in hot, for which there is no port.
    Args: devices: of the container's OCI spec.   plugged: nodes that the sandbox was made with.
    """
    for device in devices:
        path = str(device.get("path", ""))
        if path.startswith("/dev/vfio/") and path != _CONTAINER and path not in plugged:
            raise Refused(f"{path} was not plugged in when the machine was made, and hot_plug_vfio is {NO_PORT}")


def device_words(config: Config, plugged: Sequence[Function]) -> list[str]:
    """Return QEMU's words for root ports and functions. Source: virtcontainers/qemu.go, createPCIeTopology, and
    pkg/govmm/qemu/qemu.go, VFIODevice.

    With iommufd each device has an object of its own, so that two of one group cannot both be had.
    Raises: Refused: more than sixteen root ports.
    """
    ports = max(config.pcie_root_port, len(plugged))
    if ports > MOST_PORTS:
        raise Refused(f"{ports} root ports are needed, and QEMU's machine has {MOST_PORTS} at most")
    words = []
    for number in range(ports):
        words += ["-device", f"pcie-root-port,id=rp{number},bus=pcie.0,chassis={number + 1},slot={number + 1}"]
    for number, one in enumerate(plugged):
        by = ""
        if one.by_iommufd:
            words += ["-object", f"iommufd,id=iommufd{number}"]
            by = f",iommufd=iommufd{number}"
        ids = f"x-pci-vendor-id={one.vendor},x-pci-device-id={one.device}"
        words += ["-device", f"vfio-pci,host={one.address},id=vfio{number},{ids},bus=rp{number}{by}"]
    return words
