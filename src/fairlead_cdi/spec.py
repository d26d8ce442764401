"""The nouns of CDI: one spec file as frozen values, exactly the fields of CDI 0.3.0 to 1.1.0.

Field order is the order of emission. Nothing here checks anything: `parse` builds these from documents, `validate`
judges them, `emit` writes them. Zero values mean what they mean on the wire: "not declared".
Source: CDI specs-go/config.go, spec 1.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """One device node a container shall have."""

    path: str
    """In the container."""
    host_path: str = ""
    """On the host; empty: the same path."""
    type: str = ""
    """`b`, `c`, `u`, `p`; empty: what the host has."""
    major: int = 0
    """0: not declared, the host's number is used."""
    minor: int = 0
    file_mode: int | None = None
    """Permission bits of the container's node; None: the host's."""
    permissions: str = ""
    """Cgroup access, letters of `rwm`; empty: `rwm`."""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetDevice:
    """One host network interface moved into the container."""

    host_interface_name: str
    name: str
    """In the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One OCI hook."""

    hook_name: str
    """Stage: `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart`, `poststop`."""
    path: str
    args: tuple[str, ...] = ()
    """argv, first element included."""
    env: tuple[str, ...] = ()
    timeout: int | None = None
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount; without `bind` or `rbind` among the options no runtime can perform it."""

    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """Intel Resource Director Technology: cache and memory bandwidth of the container."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    """None: not declared; an empty list is declared and needs 1.1.0."""
    enable_monitoring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """What is changed in a container's OCI runtime spec."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is edited at all."""
        return bool(
            self.env
            or self.device_nodes
            or self.net_devices
            or self.hooks
            or self.mounts
            or self.intel_rdt is not None
            or self.additional_gids
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device by name, and what asking for it changes."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    edits: ContainerEdits = ContainerEdits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One spec file: devices of one kind."""

    cdi_version: str
    kind: str
    """`vendor/class`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    edits: ContainerEdits = ContainerEdits()
    """Applied once for each container that gets any device of this spec."""
