"""Decides how much of a driver a container sees: the profile, and what it makes of nodes and files.

`TENANT` leaves out the sockets, daemons and nodes through which one container could reach another; `FULL` shows what
NVIDIA's toolkit shows. Which part of the driver a file belongs to is `capability`'s table, the very one by which the
runtime shim narrows a spec.

Instead of hooks, the names by which programs open a library (`libcuda.so.1`) are mounts of the same file: nothing of
ours runs in a starting container. One of them lies in each folder where an image's linker looks by itself, whatever the
host's is called.
Source: NVIDIA driver documentation, "Device files"; `docs/design/cdi.md`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.driver import DeviceNode, HostFile
from fairlead.plan.cdi import capability
from fairlead_cdi import spec as cdi

FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")

# A tool that serves other containers or changes the machine; never a tenant's.
_DAEMONS: Final = ("nvidia-persistenced", "nvidia-cuda-mps-", "nvidia-imex", "nv-fabricmanager", "nvidia-xconfig")
# Names that programs use although drivers do not install them everywhere, by the start of the file they lead to.
_FORCED: Final[Mapping[str, str]] = {
    "libcuda.so.": "libcuda.so",
    "libGLX_nvidia.so.": "libGLX_indirect.so.0",
    "libnvidia-opticalflow.so.": "libnvidia-opticalflow.so",
    "libnvidia-vulkan-producer.so.": "libnvidia-vulkan-producer.so",
    "libnvidia-allocator.so.": "gbm/nvidia-drm_gbm.so",
    "libglxserver_nvidia.so.": "libglxserver_nvidia.so",
}
_LINKER_FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
"""Where glibc looks without a cache, by machine: Debian and its relatives, then the others. Source: ld.so(8)."""
_PROGRAM_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""What PATH names in nearly every image."""
_VDPAU: Final = "vdpau"


@frozen
class Profile:
    """How much of the driver a container is shown."""

    name: str
    capabilities: frozenset[str] = capability.DEFAULT
    """Members of `capability.KNOWN`."""
    permissions: str = "rw"
    """Cgroup access of every node; `m` (make nodes) is never needed."""
    shows_sockets: bool = False
    """Sockets of persistenced, fabric manager and MPS: control surfaces that all containers would share."""
    shows_daemons: bool = False
    """Programs that serve other containers or change the machine."""
    shows_explicit: bool = False
    """Libraries of the vendor-neutral dispatch (libGL, libEGL, libOpenCL), which images usually bring themselves."""
    adds_groups: bool = False
    """Give the groups of nodes that are not world-accessible to users other than root; needs CDI 0.7.0."""
    has_all: bool = True
    """Whether the device `all` is offered."""

    @property
    def is_graphics(self) -> bool:
        """Whether a container is to draw: then it gets its GPU's DRM nodes."""
        return bool(self.capabilities & {"graphics", "display"})


TENANT: Final = Profile(name="tenant")
"""Least exposure: for machines that several tenants share. The default."""
FULL: Final = Profile(
    name="full", capabilities=capability.ALL, permissions="rwm", shows_sockets=True, shows_daemons=True
)
"""What NVIDIA's toolkit shows: for a machine with one owner."""
PROFILES: Final[Mapping[str, Profile]] = {profile.name: profile for profile in (TENANT, FULL)}


def show_nodes(
    nodes: Iterable[DeviceNode], profile: Profile, *, paths: Mapping[str, str] | None = None
) -> cdi.ContainerEdits:
    """Return the edits that bring these nodes.

    Args: paths: a second path in the container, by path of the node; for names that udev makes as links.
    """
    found = list(nodes)
    closed = sorted({node.gid for node in found if node.gid and node.mode & 0o006 != 0o006})
    shown = [_node(node, node.path, profile) for node in found]
    shown += [_node(node, paths[node.path], profile) for node in found if paths and node.path in paths]
    return cdi.ContainerEdits(device_nodes=tuple(shown), additional_gids=tuple(closed) if profile.adds_groups else ())


def _node(node: DeviceNode, path: str, profile: Profile) -> cdi.DeviceNode:
    return cdi.DeviceNode(
        path=path,
        host_path=node.host_path,
        type="c",
        major=node.major,
        minor=node.minor,
        file_mode=node.mode,
        permissions=profile.permissions,
        gid=node.gid or None,
    )


def show_files(files: Sequence[HostFile], profile: Profile) -> tuple[cdi.Mount, ...]:
    """Return a mount for every name of every file that the profile shows, in path order."""
    places: dict[str, cdi.Mount] = {}
    for file in files:
        if not _shows_kind(file, profile):
            continue
        options = SOCKET_OPTIONS if file.kind == "socket" else FILE_OPTIONS
        for path in _names(file):
            if path not in places and _shows_path(path, file, profile):
                places[path] = cdi.Mount(host_path=file.host_path, container_path=path, options=options)
    return tuple(places[path] for path in sorted(places))


def _names(file: HostFile) -> Iterator[str]:
    """Yield the file's own path, then every other name that leads to it."""
    yield file.path
    folder, name = posixpath.split(file.path)
    others = set(file.links)
    if file.kind.startswith("library"):
        others |= {file.soname} if file.soname else set()
        others |= {forced for start, forced in _FORCED.items() if name.startswith(start) and name != forced}
    yield from (posixpath.join(folder, other) for other in sorted(others))
    if file.kind == "library" and posixpath.basename(folder) != _VDPAU:
        yield from (f"{place}/{file.soname or name}" for place in _LINKER_FOLDERS.get(file.machine, ()))
    if file.kind == "binary" and folder not in _PROGRAM_FOLDERS:
        yield f"/usr/bin/{name}"


def _shows_kind(file: HostFile, profile: Profile) -> bool:
    match file.kind:
        case "socket":
            return profile.shows_sockets
        case "binary":
            return profile.shows_daemons or not posixpath.basename(file.path).startswith(_DAEMONS)
        case "library32":
            return "compat32" in profile.capabilities
        case "explicit":
            return profile.shows_explicit
        case _:
            return True


def _shows_path(path: str, file: HostFile, profile: Profile) -> bool:
    if file.kind == "library32" and profile.capabilities == {"compat32"}:
        return True  # the variant of `compat32` alone has every 32-bit library: the other variants have none
    return capability.is_wanted(path, profile.capabilities, capability.KEPT)
