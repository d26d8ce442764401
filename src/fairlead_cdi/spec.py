"""Declares the data types of CDI: a spec as frozen values, the versions of the specification, a spec file as read.

The fields are those of CDI 0.3.0 to 1.1.0, in the order in which they are written. A zero value means what it means in
a file: not declared. The types check one thing, that every value has the type of its field: a text in place of a list,
or a dict in place of edits, is refused here and not three calls later. `parse` makes these values from documents,
`validate` applies CDI's rules, `emit` writes them.

`REQUIREMENTS` has all that is known about versions, newest first: a spec needs the first version whose predicate it
meets, else 0.3.0. An engine drops a spec that is newer than its own library and says nothing, so writers use the lowest
version that suffices.
Source: CDI specs-go/config.go and specs-go/version.go, spec 1.1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Final

from fairlead_cdi import errors

HOOK_NAMES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
"""Stages of an OCI hook."""
NO_ACCESS: Final = "none"
"""Value of `DeviceNode.permissions` for a node without cgroup access."""


def _assert_types(owner: object, lists: Mapping[str, type], single: Mapping[str, type | UnionType]) -> None:
    """Make tuples of the lists of a value, and check the types of what is in them.

    Args:    lists: field to the type of its entries.   single: field to the type of its value.
    Raises:  WrongType.
    """
    for name, kind in lists.items():
        value = getattr(owner, name)
        if type(value) is not tuple:
            errors.refuse_text(value, f"{type(owner).__name__}.{name}")
            if isinstance(value, Mapping) or not isinstance(value, Iterable):
                raise _wrong(owner, name, value, f"a list of {kind.__name__}")
            value = tuple(value)
            object.__setattr__(owner, name, value)
        for item in value:
            if not isinstance(item, kind):
                raise _wrong(owner, name, item, f"a list of {kind.__name__}")
    for name, wanted in single.items():
        value = getattr(owner, name)
        if not isinstance(value, wanted):
            raise _wrong(owner, name, value, getattr(wanted, "__name__", str(wanted)))


def _wrong(owner: object, name: str, value: object, expected: str) -> errors.WrongType:
    message = f"{type(owner).__name__}.{name} must be {expected}, not {value!r:.200}"
    hint = "parse.build_spec and parse.build_edits make values of a decoded document" if type(value) is dict else None
    return errors.WrongType(message, reason="WrongType", hint=hint, field=name)


class _Value:
    """Compares, hashes and shows values of the types below by their fields.

    `dataclass` would write these methods for each class as text and compile it: half of what an import of this module
    costs, and short-lived programs import it.
    """

    __slots__: tuple[str, ...] = ()  # each class below has its fields here

    def __eq__(self, other: object) -> bool:
        return (
            self._fields() == other._fields()
            if isinstance(other, _Value) and type(other) is type(self)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({values})"

    def _fields(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DeviceNode(_Value):
    """One device node of a container."""

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
    """Cgroup access, letters of `rwm`; empty: `rwm`; `none`: no access."""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NetDevice(_Value):
    """One host network interface moved into the container."""

    host_interface_name: str
    name: str
    """In the container."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Hook(_Value):
    """One OCI hook."""

    hook_name: str
    """Stage, one of `HOOK_NAMES`."""
    path: str
    args: tuple[str, ...] = ()
    """argv, first element included."""
    env: tuple[str, ...] = ()
    timeout: int | None = None
    """Seconds."""

    def __post_init__(self) -> None:
        _assert_types(self, {"args": str, "env": str}, {})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Mount(_Value):
    """One mount; runtimes perform it only with `bind` or `rbind` among the options."""

    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _assert_types(self, {"options": str}, {})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IntelRdt(_Value):
    """Intel Resource Director Technology: cache and memory bandwidth of the container."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    """None: not declared; an empty list is declared and needs 1.1.0."""
    enable_monitoring: bool = False

    def __post_init__(self) -> None:
        if self.schemata is not None:
            _assert_types(self, {"schemata": str}, {})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ContainerEdits(_Value):
    """Changes of a container's OCI runtime spec."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _assert_types(self, _EDIT_LISTS, {"intel_rdt": IntelRdt | None})

    def __bool__(self) -> bool:
        """Whether there is any edit."""
        return bool(
            self.env
            or self.device_nodes
            or self.net_devices
            or self.hooks
            or self.mounts
            or self.intel_rdt is not None
            or self.additional_gids
        )


_EDIT_LISTS: Final[Mapping[str, type]] = {
    "env": str,
    "device_nodes": DeviceNode,
    "net_devices": NetDevice,
    "hooks": Hook,
    "mounts": Mount,
    "additional_gids": int,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Device(_Value):
    """One device: its name, and the edits of a container that asks for it."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    edits: ContainerEdits = ContainerEdits()

    def __post_init__(self) -> None:
        _assert_types(self, {}, {"annotations": Mapping, "edits": ContainerEdits})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Spec(_Value):
    """One spec: the devices of one kind."""

    cdi_version: str
    kind: str
    """`vendor/class`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    edits: ContainerEdits = ContainerEdits()
    """Applied once for each container that gets any device of this spec."""

    def __post_init__(self) -> None:
        _assert_types(self, {"devices": Device}, {"annotations": Mapping, "edits": ContainerEdits})


Fingerprint = tuple[int, int, int, int, int]
"""Device, inode, size, change and modification time of a file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SpecFile(_Value):
    """One spec file as it was read."""

    path: str
    priority: int
    """Position of its folder in the list of folders; the highest wins."""
    spec: Spec | None
    """None: the file could not be used, see `error`."""
    error: errors.CDIError | None = None
    fingerprint: Fingerprint | None = None
    """None: the file changed a moment ago and is read again at the next scan."""
    owner: tuple[int, int] | None = None
    """Uid and mode of the very file that was read; None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Resolved(_Value):
    """One device that was asked for, and the spec file that defines it."""

    name: str
    """Fully qualified."""
    device: Device
    file: SpecFile

    @property
    def spec(self) -> Spec:
        """The spec of the file; a device is only taken from a file that has one."""
        if self.file.spec is None:
            raise AssertionError(self.file.path)
        return self.file.spec


CURRENT_VERSION: Final = "1.1.0"
LOWEST_VERSION: Final = "0.3.0"
"""Older versions are known by name and refused."""
UNIVERSAL_VERSION: Final = "0.5.0"
"""The newest version that every packaged engine with CDI reads; podman 4.3.1 of Debian 12 is the oldest engine."""
VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


def version_rank(version: str) -> int:
    """Return the position of a version in `VERSIONS`, without regard to a leading `v`; -1: CDI has no such version."""
    plain = version.removeprefix("v")
    return VERSIONS.index(plain) if plain in VERSIONS else -1


def minimum_version(spec: Spec) -> str:
    """Return the lowest version whose readers understand everything that the spec uses."""
    return next((version for version, is_needed in REQUIREMENTS if is_needed(spec)), LOWEST_VERSION)


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.edits
    yield from (device.edits for device in spec.devices)


def _needs_1_1_0(spec: Spec) -> bool:
    return any(
        edits.net_devices
        or (edits.intel_rdt is not None and (edits.intel_rdt.schemata is not None or edits.intel_rdt.enable_monitoring))
        for edits in _all_edits(spec)
    )


def _needs_0_7_0(spec: Spec) -> bool:
    return any(edits.intel_rdt is not None or edits.additional_gids for edits in _all_edits(spec))


def _needs_0_6_0(spec: Spec) -> bool:
    is_annotated = spec.annotations or any(device.annotations for device in spec.devices)
    return bool(is_annotated) or "." in spec.kind.partition("/")[2]


def _needs_0_5_0(spec: Spec) -> bool:
    digit_first = any("0" <= device.name[:1] <= "9" for device in spec.devices)
    return digit_first or any(node.host_path for edits in _all_edits(spec) for node in edits.device_nodes)


def _needs_0_4_0(spec: Spec) -> bool:
    return any(mount.type for edits in _all_edits(spec) for mount in edits.mounts)


REQUIREMENTS: Final[tuple[tuple[str, Callable[[Spec], bool]], ...]] = (
    ("1.1.0", _needs_1_1_0),
    ("0.7.0", _needs_0_7_0),
    ("0.6.0", _needs_0_6_0),
    ("0.5.0", _needs_0_5_0),
    ("0.4.0", _needs_0_4_0),
)
"""Version, and whether a spec needs it."""
