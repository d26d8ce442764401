"""Declares the configuration of NVIDIA's device plugin, `version: v1`, and writes it back as YAML.

The values are the file's own: `pluginreader` makes them from text, `plan` decides what they mean on a node. Flags are a
table, because each has four names: the key in the file, the flag, the environment variable, and the setting of ours
that it stands for. A flag that the file does not give is absent, so that the variable or the default counts.

One section is ours, `fairlead:`, for what NVIDIA's file has no word for. NVIDIA's plugin ignores keys that it does not
know, so a file with this section works with both.
Source: NVIDIA k8s-device-plugin, api/config/v1 (config.go, flags.go, replicas.go); README, "Configuration".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fairlead_cdi import yamltext

VERSION: Final = "v1"
DOMAIN: Final = "nvidia.com/"
"""Put before resource names that have no domain."""
MPS_CORE: Final = "nvidia.com/mps-core"
"""A percent of a GPU's threads, by MPS."""
MPS_MEMORY: Final = "nvidia.com/mps-memory"
"""A GiB of a GPU's memory, by MPS."""
MPS_AMOUNTS: Final = frozenset({MPS_CORE, MPS_MEMORY})
SHARED: Final = ".shared"
"""Behind the name of a shared resource, by `renameByDefault`."""
GPU_RESOURCE: Final = "nvidia.com/gpu"
LONGEST_NAME: Final = 63
"""Of a resource, with its domain."""
FEWEST_REPLICAS: Final = 2
OURS: Final = "fairlead"
"""Key of the section that NVIDIA's file does not have."""

XID_ACTIONS: Final = ("ignore", "application", "reset", "reboot")
"""What an XID may ask for: nothing, an end of the application, a reset of the GPU, a reboot of the node."""
LARGEST_XID: Final = 1023

FlagValue = bool | str | tuple[str, ...]


class Effect(enum.Enum):
    """How Fairlead treats a field."""

    LIVE = "in force at once"
    START = "in force from the next start"
    NOTHING_TO_DO = "nothing to do here"
    NOT_CARRIED_OUT = "not carried out"


class Flag(NamedTuple):
    """One row of NVIDIA's flags."""

    key: str
    """Below `flags` in the file."""
    kind: type
    """bool, str, or tuple for a list that may be one text with commas."""
    names: tuple[str, ...]
    """Flags of the command line, without dashes; the first is the one to write."""
    envs: tuple[str, ...]
    setting: str
    """Key of the setting it stands for; empty: none."""
    effect: Effect
    text: str
    """What it does here; for the other two effects why it does nothing."""
    choices: tuple[str, ...] = ()


_RETRIES: Final = "the agent waits for the driver for as long as it takes, and serves other resources meanwhile"
_IN_LABELS: Final = "labels follow the node's state without an interval of their own"

FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        "migStrategy",
        str,
        ("mig-strategy",),
        ("MIG_STRATEGY",),
        "node.mig_strategy",
        Effect.LIVE,
        "how MIG devices are offered",
        ("none", "single", "mixed"),
    ),
    Flag("failOnInitError", bool, ("fail-on-init-error",), ("FAIL_ON_INIT_ERROR",), "", Effect.NOTHING_TO_DO, _RETRIES),
    Flag(
        "mpsRoot",
        str,
        ("mps-root",),
        ("MPS_ROOT",),
        "plugin.mps_root",
        Effect.START,
        "folder of the MPS daemons' pipes, logs and shared memory",
    ),
    Flag(
        "nvidiaDriverRoot",
        str,
        ("nvidia-driver-root", "driver-root"),
        ("NVIDIA_DRIVER_ROOT",),
        "silicon.driver_root",
        Effect.START,
        "root of the driver's libraries and tools",
    ),
    Flag(
        "nvidiaDevRoot",
        str,
        ("nvidia-dev-root", "dev-root"),
        ("NVIDIA_DEV_ROOT",),
        "silicon.dev_root",
        Effect.START,
        "folder that has the driver's /dev",
    ),
    *(
        Flag(
            f"{name}Enabled",
            bool,
            (f"{name}-enabled",),
            (f"{name.upper()}_ENABLED",),
            f"plugin.{name}",
            Effect.LIVE,
            f"whether containers get the {what} beside their GPUs, where the node has it",
        )
        for name, what in (
            ("gdrcopy", "GDRCopy device"),
            ("gds", "GPUDirect Storage devices"),
            ("mofed", "InfiniBand devices"),
        )
    ),
    Flag(
        "useNodeFeatureAPI",
        bool,
        ("use-node-feature-api",),
        ("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"),
        "",
        Effect.NOTHING_TO_DO,
        "the agent labels its Node itself, unless FAIRLEAD_LABELS_WAY is node-feature",
    ),
    Flag(
        "deviceDiscoveryStrategy",
        str,
        ("device-discovery-strategy",),
        ("DEVICE_DISCOVERY_STRATEGY",),
        "silicon.discovery",
        Effect.START,
        "how GPUs are found",
        ("auto", "nvml", "tegra"),
    ),
    Flag(
        "plugin.passDeviceSpecs",
        bool,
        ("pass-device-specs",),
        ("PASS_DEVICE_SPECS",),
        "node.pass_device_specs",
        Effect.LIVE,
        "device nodes stand in Allocate's answer as well",
    ),
    Flag(
        "plugin.deviceListStrategy",
        tuple,
        ("device-list-strategy",),
        ("DEVICE_LIST_STRATEGY",),
        "node.device_list_strategy",
        Effect.LIVE,
        "how Allocate names devices",
        ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
    ),
    Flag(
        "plugin.deviceIDStrategy",
        str,
        ("device-id-strategy",),
        ("DEVICE_ID_STRATEGY",),
        "node.device_id_strategy",
        Effect.LIVE,
        "by what Allocate names devices",
        ("uuid", "index"),
    ),
    Flag(
        "plugin.cdiAnnotationPrefix",
        str,
        ("cdi-annotation-prefix",),
        ("CDI_ANNOTATION_PREFIX",),
        "",
        Effect.NOTHING_TO_DO,
        "CDI annotations begin with cdi.k8s.io/, the prefix that every engine reads",
        ("cdi.k8s.io/",),
    ),
    Flag(
        "plugin.nvidiaCTKPath",
        str,
        ("nvidia-ctk-path", "nvidia-cdi-hook-path"),
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        "",
        Effect.NOTHING_TO_DO,
        "our CDI specs need no hook of NVIDIA's; FAIRLEAD_NODE_CDI_HOOK names ours",
    ),
    Flag(
        "plugin.containerDriverRoot",
        str,
        ("container-driver-root", "driver-root-ctr-path"),
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        "",
        Effect.NOTHING_TO_DO,
        "the agent sees the node's root at FAIRLEAD_SILICON_ROOT, the driver's root below it",
    ),
    Flag(
        "plugin.sharedDevicesAllocationPolicy",
        str,
        ("shared-devices-allocation-policy",),
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        "plugin.sharing_policy",
        Effect.LIVE,
        "which GPU gives the next replica",
        ("distributed", "packed"),
    ),
    Flag("gfd.oneshot", bool, ("oneshot",), ("GFD_ONESHOT",), "", Effect.NOTHING_TO_DO, _IN_LABELS),
    Flag(
        "gfd.noTimestamp",
        bool,
        ("no-timestamp",),
        ("GFD_NO_TIMESTAMP",),
        "labels.no_timestamp",
        Effect.START,
        "whether the label gfd.timestamp is left out",
    ),
    Flag("gfd.sleepInterval", str, ("sleep-interval",), ("GFD_SLEEP_INTERVAL",), "", Effect.NOTHING_TO_DO, _IN_LABELS),
    Flag(
        "gfd.outputFile",
        str,
        ("output-file",),
        ("GFD_OUTPUT_FILE",),
        "labels.file",
        Effect.START,
        "the features.d file, written where FAIRLEAD_LABELS_WAY is file; else the agent labels its Node itself",
    ),
    Flag(
        "gfd.machineTypeFile",
        str,
        ("machine-type-file",),
        ("GFD_MACHINE_TYPE_FILE",),
        "",
        Effect.NOTHING_TO_DO,
        "the machine's product name is read from sysfs",
    ),
)
"""In the order of NVIDIA's documentation."""

BY_KEY: Final[Mapping[str, Flag]] = {flag.key: flag for flag in FLAGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingRule:
    """One entry of `resources.gpus` or `resources.mig`."""

    pattern: str
    """Matches the whole product name, or the MIG profile; `*` stands for any text."""
    name: str
    """Full name of the resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """Which devices an entry is about: all, the first few, or those named."""

    count: int | None = None
    names: tuple[str, ...] = ()
    """Index `0`, MIG index `0:1`, UUID of a GPU or MIG device; for claims the PCI address of one that is passed on."""

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.count is None and not self.names

    def plain(self) -> object:
        """Return the value as the file has it."""
        return "all" if self.is_all else self.count if self.count is not None else list(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """One entry of a sharing's `resources`."""

    name: str
    """Full name of the resource that is shared."""
    replicas: int
    rename: str = ""
    """Full name of the resource that its replicas have; empty: as `renameByDefault` says."""
    devices: DeviceChoice = DeviceChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`sharing.timeSlicing` or `sharing.mps`."""

    rename_by_default: bool = False
    fails_above_one: bool = False
    """Whether more than one replica for one container is refused."""
    resources: tuple[Replicas, ...] = ()

    def resource_of(self, entry: Replicas) -> str:
        """Return the name under which an entry's replicas are offered."""
        return entry.rename or (entry.name + SHARED if self.rename_by_default else entry.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The section `fairlead`."""

    different_gpus: bool = False
    """Replicas for one container must be of different GPUs."""
    mps_amounts: DeviceChoice | None = None
    """GPUs that are offered by amounts, as nvidia.com/mps-core and nvidia.com/mps-memory; None: none are."""
    claims: DeviceChoice | None = None
    """GPUs that are given away by ResourceClaims; None: the setting `node.door` decides for all."""
    xids: Mapping[int, str] = field(default_factory=dict)
    """What XIDs ask for, members of `XID_ACTIONS`, in place of what the vendor's catalog says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """One file."""

    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    """Those that are given, by key."""
    gpus: tuple[NamingRule, ...] = ()
    mig: tuple[NamingRule, ...] = ()
    time_slicing: Sharing | None = None
    mps: Sharing | None = None
    imex_channels: tuple[int, ...] | None = None
    imex_required: bool | None = None
    own: Own = Own()


def qualified_name(name: str) -> str:
    """Return a resource's full name: NVIDIA's domain before one that has none."""
    return name if "/" in name else DOMAIN + name


def document(config: PluginConfig) -> dict[str, Any]:
    """Return the configuration as plain values, as a file says them."""
    shared = {"timeSlicing": config.time_slicing, "mps": config.mps}
    imex = {"channelIDs": config.imex_channels, "required": config.imex_required}
    found: dict[str, Any] = {
        "version": VERSION,
        "flags": _nested(config.flags),
        "resources": {
            group: [{"pattern": rule.pattern, "name": rule.name} for rule in rules]
            for group, rules in (("gpus", config.gpus), ("mig", config.mig))
            if rules
        },
        "sharing": {key: _sharing(one) for key, one in shared.items() if one is not None},
        "imex": {key: _plain(value) for key, value in imex.items() if value is not None},
        OURS: _own(config.own),
    }
    return {key: value for key, value in found.items() if value}


def _own(own: Own) -> dict[str, Any]:
    sharing: dict[str, Any] = {"differentGPUs": True} if own.different_gpus else {}
    if own.mps_amounts is not None:
        sharing["mpsAmounts"] = {"devices": own.mps_amounts.plain()}
    xids = {str(xid): action for xid, action in own.xids.items()}
    claims = {} if own.claims is None else {"devices": own.claims.plain()}
    found: dict[str, Any] = {"sharing": sharing, "claims": claims, "health": {"xids": xids} if xids else {}}
    return {key: value for key, value in found.items() if value}


def emit(config: PluginConfig) -> str:
    """Return the configuration as YAML."""
    return yamltext.dump(document(config))


def _nested(flags: Mapping[str, FlagValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag in FLAGS:
        if flag.key in flags:
            *groups, last = flag.key.split(".")
            place = found
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = _plain(flags[flag.key])
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _sharing(one: Sharing) -> dict[str, Any]:
    return {
        "renameByDefault": one.rename_by_default,
        "failRequestsGreaterThanOne": one.fails_above_one,
        "resources": [
            {
                "name": entry.name,
                **({"rename": entry.rename} if entry.rename else {}),
                "devices": entry.devices.plain(),
                "replicas": entry.replicas,
            }
            for entry in one.resources
        ],
    }
