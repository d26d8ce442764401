"""Decides what is in force on a node: flags and variables over the configuration file over our own settings. Pure.

`NodeConfig` is the value that flows through the agent: parts that share, partition and answer take what they need from
it, and from a later one as soon as the file, or the node's choice of a file, has changed. What a running agent cannot
change (where the driver is) is applied once, before it starts: `apply_at_start`.
Source: NVIDIA k8s-device-plugin, README "Configuration": command line, then environment, then file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors, settings
from fairlead.plan.gpu import door, health, healthpolicy
from fairlead.plan.gpu.allocation import answer, companion
from fairlead.wire.nvidia import pluginconfig
from fairlead.wire.nvidia.pluginconfig import DeviceChoice, Effect, FlagValue, PluginConfig

FALLBACKS: Final = ("named", "single", "empty")
"""Ways to choose a file where none is named, as NVIDIA's config-manager calls them."""
NAMED: Final = "default"
_DIGITS: Final = 9
"""Of a channel's number, as far as it is read: Python reads no number of thousands of digits."""
LAST_CHANNEL: Final = 2047
"""Source: nvidia-modprobe and the driver's parameter NVreg_ImexChannelCount: at most 2048 channels."""
MPS_CLIENTS: Final = 48
MPS_CLIENTS_BEFORE_VOLTA: Final = 16
"""Source: NVIDIA Multi-Process Service, "Volta MPS": 48 clients of a device from compute capability 7.0 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What is in force on this node now."""

    allocate: answer.AllocateOptions = answer.DEFAULT
    mig_strategy: str = "none"
    """How MIG devices are offered: none, single, mixed."""
    packs_replicas: bool = False
    """Whether the next replica is of the GPU with most replicas in use, else of the one with fewest."""
    claims: DeviceChoice | str = door.PLUGIN
    """Which GPUs are given away by ResourceClaims: one door for all, or those that claims get."""
    health: health.Policy = health.DEFAULT
    document: PluginConfig = field(default_factory=PluginConfig)
    """The file: names, sharing. Its flags are merged into the fields above; read them there."""
    name: str = ""
    """Which file is in force, as the node's label names it, or its path; empty: none."""
    problem: str = ""
    """Why another one, which was asked for, is not in force; empty: none was."""


def plan_config(
    chosen: settings.Settings, document: PluginConfig | None = None, *, name: str = "", problem: str = ""
) -> NodeConfig:
    """Merge a file into the settings. Args: document: None: there is no file.

    Raises: Invalid: a wrong setting, or a file that asks for what would be another thing if it were left out.
    """
    found = document or PluginConfig()
    if problems := find_impossible(found):
        hint = "`fairlead agent check FILE` says what a file does"
        raise errors.Invalid("; ".join(problems), reason="PluginConfigUnsupported", hint=hint)
    claims = chosen.node.door if found.own.claims is None else found.own.claims
    if claims != door.PLUGIN and chosen.lease.ledger != "on":
        source = "node.door=claims" if found.own.claims is None else "fairlead.claims of the file"
        message = f"{source} gives GPUs away by claims, and lease.ledger is {chosen.lease.ledger}"
        hint = "set --lease-ledger on: two doors to one GPU are safe with the ledger below both alone"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    flat = {**dict(_from_file(chosen, found.flags)), **dict(_imex(chosen, found))}
    values = settings.override(chosen, flat) if flat else chosen
    return NodeConfig(
        allocate=answer.AllocateOptions(
            strategies=answer.parse_strategies(values.node.device_list_strategy),
            ids=values.node.device_id_strategy,
            passes_device_specs=values.node.pass_device_specs,
            beside=companion.Wanted(
                modes=tuple(mode for mode in companion.VARIABLES if getattr(values.plugin, mode)),
                channels=parse_channels(values.plugin.imex_channels),
                requires_channels=values.plugin.imex_required,
            ),
        ),
        mig_strategy=values.node.mig_strategy,
        packs_replicas=values.plugin.sharing_policy == "packed",
        claims=claims,
        health=healthpolicy.plan_policy(values, found.own.xids),
        document=found,
        name=name,
        problem=problem,
    )


def apply_at_start(chosen: settings.Settings, document: PluginConfig) -> settings.Settings:
    """Return the settings with those of the file's flags that a running agent cannot change. Raises: Invalid."""
    flat = {
        key: value
        for key, value in _from_file(chosen, document.flags)
        if any(flag.setting == key and flag.effect is Effect.START for flag in pluginconfig.FLAGS)
    }
    return settings.override(chosen, flat) if flat else chosen


def _from_file(chosen: settings.Settings, flags: Mapping[str, FlagValue]) -> Iterator[tuple[str, FlagValue]]:
    """Yield settings, by key, that a file sets and neither a flag nor a variable has."""
    for key, value in flags.items():
        setting = pluginconfig.BY_KEY[key].setting
        if setting and setting not in chosen.given and value != "":
            yield setting, ",".join(value) if isinstance(value, tuple) else value


def _imex(chosen: settings.Settings, found: PluginConfig) -> Iterator[tuple[str, FlagValue]]:
    """Yield the settings of the file's section `imex`, likewise."""
    if found.imex_channels is not None and "plugin.imex_channels" not in chosen.given:
        yield "plugin.imex_channels", ",".join(map(str, found.imex_channels))
    if found.imex_required is not None and "plugin.imex_required" not in chosen.given:
        yield "plugin.imex_required", found.imex_required


def _is_channel(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _DIGITS and int(word) <= LAST_CHANNEL


def parse_channels(text: str) -> tuple[int, ...]:
    """Return the IMEX channels of a list joined by commas. Raises: Invalid: not numbers, or none that there can be."""
    words = [word.strip() for word in text.strip("[]").split(",") if word.strip()]
    if wrong := [word for word in words if not _is_channel(word)]:
        message = f'IMEX channel "{wrong[0][:80]}" is not a number from 0 to {LAST_CHANNEL}'
        raise errors.Invalid(message, reason="SettingInvalid", hint="set FAIRLEAD_PLUGIN_IMEX_CHANNELS, for example 0")
    return tuple(dict.fromkeys(map(int, words)))


def find_impossible(document: PluginConfig) -> tuple[str, ...]:
    """Return what keeps a file that is right from being in force, each with its path."""
    return tuple(_impossible(document))


def _impossible(document: PluginConfig) -> Iterator[str]:
    by_mps = document.mps is not None or document.own.mps_amounts is not None
    for at, entry in enumerate(document.mps.resources if document.mps is not None else ()):
        path = f"sharing.mps.resources[{at}]"
        if entry.replicas > MPS_CLIENTS:
            yield (
                f"{path}.replicas: {entry.replicas} clients are more than MPS serves: {MPS_CLIENTS} on a GPU, "
                f"{MPS_CLIENTS_BEFORE_VOLTA} before Volta"
            )
        names = (entry.name.partition("/")[2], *entry.devices.names)
        if any(name.startswith(("mig-", "MIG-")) for name in names):
            yield f"{path}: MIG devices are not shared by MPS; use sharing.timeSlicing for them"
        if not entry.name.startswith(pluginconfig.DOMAIN):
            yield f"{path}.name: {entry.name} is not NVIDIA's, and only NVIDIA's GPUs are shared by MPS"
    if by_mps and document.flags.get("migStrategy") == "single":
        yield "flags.migStrategy: single offers MIG devices as nvidia.com/gpu, and MIG devices are not shared by MPS"


def choose_file(names: Collection[str], *, wanted: str, default: str, fallbacks: Sequence[str]) -> str:
    """Return the name of the file to be in force; empty: none, on purpose.

    Args:    names: of the files there are.   wanted: by the node's label; empty: it has none.
             default: where it has none; empty: the fallbacks decide.   fallbacks: members of `FALLBACKS`, in order.
    Raises:  NotFound: the file that is named is not there, or no fallback finds one; Invalid: an unknown fallback.
    """
    for fallback in fallbacks:
        if fallback not in FALLBACKS:
            message = f'configuration fallback "{fallback}" is not offered (offered: {", ".join(FALLBACKS)})'
            raise errors.Invalid(message, reason="SettingInvalid", hint="set FAIRLEAD_PLUGIN_CONFIG_FALLBACKS")
    there = ", ".join(sorted(names)) or "none"
    if name := wanted or default:
        if name in names:
            return name
        message = f'configuration "{name}" is not there (there: {there})'
        hint = "the node's label nvidia.com/device-plugin.config names it" if wanted else "it is the configured default"
        raise errors.NotFound(message, reason="ConfigNotFound", hint=hint)
    for fallback in fallbacks:
        if fallback == "named" and NAMED in names:
            return NAMED
        if fallback == "single" and len(names) == 1:
            return next(iter(names))
        if fallback == "empty":
            return ""
    message = f"no configuration was chosen for this node, and no fallback finds one (there: {there})"
    hint = f'label the node nvidia.com/device-plugin.config=NAME, or call one file "{NAMED}"'
    raise errors.NotFound(message, reason="ConfigNotFound", hint=hint)
