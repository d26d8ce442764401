"""The CDI spec of a machine's GPUs: inventory and driver files in, spec out. Pure; nothing is looked up here.

One device a GPU, under its uuid and under its index; one a MIG device, under its uuid and `GPU:INDEX`, which brings
the parent's node and its two capability nodes; `all` brings everything. A GPU in MIG mode is no device itself. What
every container needs (control nodes, libraries, tools) is said once, at spec level.

Instead of hooks, the names by which programs open a library (`libcuda.so.1`) are mounts of the same file: nothing of
ours runs in a starting container. `Profile` decides how much of the driver a container sees; `TENANT` leaves out the
sockets, daemons and nodes through which one container could reach another. Specs stay at CDI 0.5.0 unless the profile
asks for supplementary groups, since older engines drop newer specs without a word.
Source: NVIDIA driver documentation, "Device files" and "MIG capabilities"; `docs/design/cdi.md`.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.driver import DeviceNode, DriverFiles, HostFile
from fairlead.model.gpu import GPU, Inventory, MIGDevice, Vendor
from fairlead.wire.cdi import emit
from fairlead.wire.cdi import spec as cdi

KINDS: Final[Mapping[Vendor, str]] = {
    Vendor.NVIDIA: "nvidia.com/gpu",
    Vendor.AMD: "amd.com/gpu",
    Vendor.INTEL: "intel.com/gpu",
}
ALL: Final = "all"
CAPABILITIES: Final = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")

FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")

_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_MODESET: Final = "/dev/nvidia-modeset"
_SHARED: Final[Mapping[Vendor, tuple[str, ...]]] = {
    Vendor.NVIDIA: _CONTROL,
    Vendor.AMD: ("/dev/kfd",),
    Vendor.INTEL: (),
}
# A tool that serves other containers or changes the machine; never a tenant's.
_DAEMONS: Final = ("nvidia-persistenced", "nvidia-cuda-mps-", "nvidia-imex", "nv-fabricmanager", "nvidia-xconfig")

# Which capability a library belongs to, by the start of its name; those of no row are part of every capability.
_LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "utility": ("libnvidia-ml.", "libnvidia-cfg.", "libnvidia-nscq."),
    "compute": (
        "libcuda.",
        "libcudadebugger.",
        "libnvidia-opencl.",
        "libnvidia-ptxjitcompiler.",
        "libnvidia-fatbinaryloader.",
        "libnvidia-compiler.",
        "libnvidia-pkcs11",
        "libnvidia-nvvm",
        "libnvidia-tileiras.",
    ),
    "video": ("libvdpau_nvidia.", "libnvidia-encode.", "libnvidia-opticalflow.", "libnvcuvid."),
    "graphics": (
        "libnvidia-eglcore.",
        "libnvidia-glcore.",
        "libnvidia-tls.",
        "libnvidia-glsi.",
        "libnvidia-fbc.",
        "libnvidia-ifr.",
        "libnvidia-rtcore.",
        "libnvoptix.",
        "libGLX_nvidia.",
        "libEGL_nvidia.",
        "libGLESv2_nvidia.",
        "libGLESv1_CM_nvidia.",
        "libnvidia-glvkspirv.",
        "libnvidia-cbl.",
        "libnvidia-egl-",
    ),
    "ngx": ("libnvidia-ngx.",),
}
_CONFIG_CAPABILITY: Final[Mapping[str, str]] = {
    "glvnd": "graphics",
    "egl_external_platform.d": "graphics",
    "vulkan": "graphics",
    "nvidia": "graphics",
    "X11": "display",
    "OpenCL": "compute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much of the driver a container is shown."""

    name: str
    capabilities: frozenset[str] = frozenset({"compute", "utility"})
    """Members of `CAPABILITIES`."""
    permissions: str = "rw"
    """Cgroup access of every node; `m` (make nodes) is never needed."""
    shows_sockets: bool = False
    """Sockets of persistenced, fabric manager and MPS: control surfaces that all containers would share."""
    shows_daemons: bool = False
    """Programs that serve other containers or change the machine."""
    adds_groups: bool = False
    """Give the groups of nodes that are not world-accessible to users other than root; needs CDI 0.7.0."""
    has_all: bool = True
    """Whether the device `all` is offered."""


TENANT: Final = Profile(name="tenant")
"""Least exposure: for machines that several tenants share. The default."""
FULL: Final = Profile(
    name="full", capabilities=frozenset(CAPABILITIES), permissions="rwm", shows_sockets=True, shows_daemons=True
)
"""What NVIDIA's toolkit shows: for a machine with one owner."""
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (TENANT, FULL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one run produced."""

    specs: tuple[cdi.Spec, ...] = ()
    """One a vendor that has devices, in the vendors' order."""
    problems: tuple[str, ...] = ()
    """Devices left out and why, one line each."""


def generate(inventory: Inventory, files: Sequence[DriverFiles], *, profile: Profile = TENANT) -> Generation:
    """Return specs for all vendors found. No devices is no error: then there are no specs.

    Args: files: one value a vendor, as `Silicon.scan_driver` gives them.
    """
    specs: list[cdi.Spec] = []
    problems = [f"GPU {gpu.index} is left out: {gpu.message}" for gpu in inventory.unreadable]
    for vendor, kind in KINDS.items():
        builder = _builder(inventory, files, vendor, profile)
        spec = builder.spec(kind)
        problems.extend(builder.problems)
        if spec is not None:
            specs.append(spec)
    return Generation(specs=tuple(specs), problems=tuple(problems))


def generate_spec(
    inventory: Inventory,
    files: Sequence[DriverFiles],
    *,
    vendor: Vendor = Vendor.NVIDIA,
    kind: str = "",
    profile: Profile = TENANT,
) -> cdi.Spec | None:
    """Return the spec of one vendor's GPUs in its lowest version; None: there are no devices, write nothing.

    Args: kind: `vendor/class` of the spec; empty: the vendor's usual one.
    """
    return _builder(inventory, files, vendor, profile).spec(kind or KINDS[vendor])


def _builder(inventory: Inventory, files: Sequence[DriverFiles], vendor: Vendor, profile: Profile) -> _Builder:
    empty = DriverFiles(vendor=vendor, version=None)
    driver = next((item for item in files if item.vendor is vendor), empty)
    gpus = tuple(gpu for gpu in inventory.gpus if gpu.vendor is vendor)
    return _Builder(gpus=gpus, driver=driver, profile=profile)


class _Builder:
    def __init__(self, *, gpus: Sequence[GPU], driver: DriverFiles, profile: Profile) -> None:
        self.problems: list[str] = []
        self._gpus = gpus
        self._driver = driver
        self._profile = profile
        self._nodes = {node.path: node for node in driver.nodes}
        self._mig_minors = dict(driver.mig_minors)

    def spec(self, kind: str) -> cdi.Spec | None:
        devices = list(self._devices())
        if not devices:
            return None
        if self._profile.has_all:
            devices.append(cdi.Device(name=ALL, edits=merge(device.edits for device in devices)))
        spec = cdi.Spec(cdi_version="", kind=kind, devices=tuple(devices), edits=self._common())
        return emit.normal_form(spec)

    def _devices(self) -> Iterator[cdi.Device]:
        for gpu in self._gpus:
            if gpu.mig_enabled:
                for instance in gpu.mig_devices:
                    yield from self._named(
                        (instance.uuid, f"{gpu.index}:{instance.index}"), self._mig_paths(gpu, instance)
                    )
            else:
                yield from self._named((gpu.uuid, str(gpu.index)), self._gpu_paths(gpu))

    def _named(self, names: Iterable[str], paths: Sequence[str]) -> Iterator[cdi.Device]:
        """Yield one device under each of its names; nothing, and a problem, where a node is missing."""
        name, *others = dict.fromkeys(names)
        missing = [path for path in paths if path not in self._nodes]
        if missing or not paths:
            self.problems.append(f"device {name} is left out: {', '.join(missing) or 'its nodes'} not found")
            return
        edits = self._node_edits(paths)
        for each in (name, *others):
            yield cdi.Device(name=each, edits=edits)

    def _gpu_paths(self, gpu: GPU) -> tuple[str, ...]:
        if gpu.vendor is Vendor.NVIDIA:
            shown = gpu.device_nodes or (f"/dev/nvidia{gpu.minor}",)
            is_graphics = bool(self._profile.capabilities & {"graphics", "display"})
            return tuple(path for path in shown if is_graphics or not path.startswith("/dev/dri/"))
        return gpu.device_nodes

    def _mig_paths(self, gpu: GPU, instance: MIGDevice) -> tuple[str, ...]:
        parent = f"gpu{gpu.minor}/gi{instance.gpu_instance}"
        keys = (f"{parent}/access", f"{parent}/ci{instance.compute_instance}/access")
        caps = [self._mig_minors.get(key) for key in keys]
        named = [
            f"/dev/nvidia-caps/nvidia-cap{key if minor is None else minor}"
            for key, minor in zip(keys, caps, strict=True)
        ]
        return (f"/dev/nvidia{gpu.minor}", *named)

    def _node_edits(self, paths: Iterable[str]) -> cdi.ContainerEdits:
        found = [self._nodes[path] for path in paths]
        closed = sorted({node.gid for node in found if node.gid and node.mode & 0o006 != 0o006})
        return cdi.ContainerEdits(
            device_nodes=tuple(self._node(node) for node in found),
            additional_gids=tuple(closed) if self._profile.adds_groups else (),
        )

    def _node(self, node: DeviceNode) -> cdi.DeviceNode:
        return cdi.DeviceNode(
            path=node.path,
            host_path=node.host_path,
            type="c",
            major=node.major,
            minor=node.minor,
            file_mode=node.mode,
            permissions=self._profile.permissions,
            gid=node.gid or None,
        )

    def _common(self) -> cdi.ContainerEdits:
        vendor = self._driver.vendor
        wanted = list(_SHARED[vendor])
        if vendor is Vendor.NVIDIA and self._profile.capabilities & {"display"}:
            wanted.append(_MODESET)
        nodes = self._node_edits(path for path in wanted if path in self._nodes)
        mounts = sorted(self._mounts(), key=lambda mount: mount.container_path)
        # An engine's own NVIDIA runtime hook must not add GPUs of its own accord.
        env = ("NVIDIA_VISIBLE_DEVICES=void",) if vendor is Vendor.NVIDIA else ()
        return dataclasses.replace(nodes, env=env, mounts=tuple(mounts))

    def _mounts(self) -> Iterator[cdi.Mount]:
        seen: set[str] = set()
        for file in self._driver.files:
            if not self._shows(file):
                continue
            folder = posixpath.dirname(file.path)
            links = {*file.links, *([file.soname] if file.soname else [])}
            for path in (file.path, *(f"{folder}/{link}" for link in sorted(links))):
                if path not in seen:
                    seen.add(path)
                    options = SOCKET_OPTIONS if file.kind == "socket" else FILE_OPTIONS
                    yield cdi.Mount(host_path=file.host_path, container_path=path, options=options)

    def _shows(self, file: HostFile) -> bool:
        name = posixpath.basename(file.path)
        match file.kind:
            case "socket":
                return self._profile.shows_sockets
            case "binary":
                return self._profile.shows_daemons or not name.startswith(_DAEMONS)
            case "library32":
                return "compat32" in self._profile.capabilities and self._shows_library(name)
            case "library":
                return self._shows_library(name)
            case "config":
                owners = [owner for part, owner in _CONFIG_CAPABILITY.items() if part in file.path.split("/")]
                return not owners or bool(self._profile.capabilities & set(owners))
            case _:
                return True

    def _shows_library(self, name: str) -> bool:
        owners = {owner for owner, starts in _LIBRARIES.items() if name.startswith(starts)}
        return not owners or bool(self._profile.capabilities & owners)


def merge(parts: Iterable[cdi.ContainerEdits]) -> cdi.ContainerEdits:
    """Return edits that do what all of these do, each entry once, in first-seen order; the last intelRdt stands."""
    found = tuple(parts)
    return cdi.ContainerEdits(
        env=tuple(dict.fromkeys(item for part in found for item in part.env)),
        device_nodes=tuple(dict.fromkeys(item for part in found for item in part.device_nodes)),
        net_devices=tuple(dict.fromkeys(item for part in found for item in part.net_devices)),
        hooks=tuple(dict.fromkeys(item for part in found for item in part.hooks)),
        mounts=tuple(dict.fromkeys(item for part in found for item in part.mounts)),
        intel_rdt=next((part.intel_rdt for part in reversed(found) if part.intel_rdt is not None), None),
        additional_gids=tuple(dict.fromkeys(item for part in found for item in part.additional_gids)),
    )
