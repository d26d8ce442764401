"""Says field by field what a configuration file of NVIDIA's device plugin does here. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.gpu import nodeconfig
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.nvidia import pluginconfig
from fairlead.wire.nvidia.pluginconfig import DeviceChoice, Effect, FlagValue, NamingRule, Own, PluginConfig, Sharing

_XID_TEXTS: Final[Mapping[str, str]] = {
    "ignore": "the XID changes nothing",
    "application": "the XID concerns the application alone; its GPU stays offered",
    "reset": "the XID takes its GPU, or MIG device, out until the GPU was reset",
    "reboot": "the XID takes its GPU out until the node was rebooted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a file."""

    path: str
    value: str
    effect: Effect
    text: str
    """What it does, or why nothing."""


def explain(config: PluginConfig) -> tuple[Field, ...]:
    """Return the fields that a file gives, in the file's order of sections."""
    return tuple(_explain(config))


def _explain(config: PluginConfig) -> Iterator[Field]:
    for flag in pluginconfig.FLAGS:
        if flag.key in config.flags:
            value = config.flags[flag.key]
            yield Field(path=f"flags.{flag.key}", value=_shown(value), effect=flag.effect, text=flag.text)
    yield from _naming(config.gpus, "resources.gpus", "GPUs whose product name is")
    yield from _naming(config.mig, "resources.mig", "MIG devices whose profile is")
    for key, sharing in (("timeSlicing", config.time_slicing), ("mps", config.mps)):
        if sharing is not None and (key == "mps" or config.mps is None):
            yield from _sharing(sharing, key, config)
        elif sharing is not None:
            text = "sharing.mps is given too, and counts alone"
            yield Field(path=f"sharing.{key}", value="", effect=Effect.NOTHING_TO_DO, text=text)
    if config.imex_channels is not None:
        yield Field(
            path="imex.channelIDs",
            value=",".join(map(str, config.imex_channels)) or "none",
            effect=Effect.LIVE,
            text="IMEX channels that containers get beside their GPUs, where the node has them",
        )
    if config.imex_required is not None:
        text = (
            "containers are refused while such a channel is missing"
            if config.imex_required
            else "a channel may be missing"
        )
        yield Field(path="imex.required", value=_shown(config.imex_required), effect=Effect.LIVE, text=text)
    yield from _own(config.own)


def _own(own: Own) -> Iterator[Field]:
    if own.different_gpus:
        path = f"{pluginconfig.OURS}.sharing.differentGPUs"
        text = "a container that asks for several replicas gets them of different GPUs, or is refused"
        yield Field(path=path, value="true", effect=Effect.LIVE, text=text)
    if own.mps_amounts is not None:
        text = (
            f"{_chosen(own.mps_amounts)} of NVIDIA's GPUs offered as {pluginconfig.MPS_CORE} (percent of the "
            f"threads) and {pluginconfig.MPS_MEMORY} (GiB); a container asks for both, and gets both of one GPU"
        )
        yield Field(path=f"{pluginconfig.OURS}.sharing.mpsAmounts", value="", effect=Effect.LIVE, text=text)
    if own.claims is not None:
        text = f"{_chosen(own.claims)} of NVIDIA's GPUs given away by ResourceClaims, the others by the device plugin"
        yield Field(path=f"{pluginconfig.OURS}.claims", value="", effect=Effect.LIVE, text=text)
    for xid, action in own.xids.items():
        path = f"{pluginconfig.OURS}.health.xids.{xid}"
        yield Field(path=path, value=action, effect=Effect.LIVE, text=_XID_TEXTS[action])


def _naming(rules: tuple[NamingRule, ...], path: str, about: str) -> Iterator[Field]:
    for at, rule in enumerate(rules):
        text = f"{about} {rule.pattern} are offered as {rule.name}"
        yield Field(path=f"{path}[{at}]", value=f"{rule.pattern} -> {rule.name}", effect=Effect.LIVE, text=text)


def _sharing(sharing: Sharing, key: str, config: PluginConfig) -> Iterator[Field]:
    path = f"sharing.{key}"
    means = "MPS" if key == "mps" else "time-slicing"
    fails = "more than one replica for one container is " + ("refused" if sharing.fails_above_one else "allowed")
    yield Field(
        path=f"{path}.renameByDefault",
        value=_shown(sharing.rename_by_default),
        effect=Effect.LIVE,
        text=f"shared resources {'end in' if sharing.rename_by_default else 'do not get'} {pluginconfig.SHARED}",
    )
    yield Field(
        path=f"{path}.failRequestsGreaterThanOne",
        value=_shown(sharing.fails_above_one),
        effect=Effect.LIVE,
        text=fails,
    )
    for at, entry in enumerate(sharing.resources):
        named = sharing.resource_of(entry)
        text = (
            f"{_chosen(entry.devices)} of {entry.name} shared by {means}:"
            f" {entry.replicas} replicas of each, offered as {named}"
        )
        if key == "mps":
            text += _limits(entry.replicas)
        renamed = _renamed_away(entry.name, config)
        yield Field(
            path=f"{path}.resources[{at}]",
            value=f"{entry.name} x {entry.replicas}",
            effect=Effect.NOT_CARRIED_OUT if renamed else Effect.LIVE,
            text=renamed or text,
        )


def _renamed_away(name: str, config: PluginConfig) -> str:
    """Return why no device can have the name that is to be shared; empty: one can."""
    profile = name.partition("/mig-")[2]
    rules, path = (config.mig, "resources.mig") if profile else (config.gpus, "resources.gpus")
    if name in {rule.name for rule in (*config.gpus, *config.mig)} or not (
        profile or name == pluginconfig.GPU_RESOURCE
    ):
        return ""
    if not profile and config.flags.get("migStrategy") == "single":
        return ""  # MIG devices have this name then
    # A resource writes a profile's + as a point.
    spellings = {profile, profile.replace("gb.", "gb+", 1)} if profile else set[str]()
    for at, rule in enumerate(rules):
        if rule.pattern == "*" or any(advertise.matches(rule.pattern, one) for one in spellings):
            return (
                f"nothing is shared: {path}[{at}] ({rule.pattern}) offers these devices as {rule.name}; share that name"
            )
    return ""


def _limits(replicas: int) -> str:
    """Return what a client of MPS gets, in words."""
    text = f"; each may use {100 // replicas} % of the threads and 1/{replicas} of the memory"
    if replicas > nodeconfig.MPS_CLIENTS_BEFORE_VOLTA:
        text += f"; GPUs before Volta serve {nodeconfig.MPS_CLIENTS_BEFORE_VOLTA} clients and are not offered"
    return text


def _chosen(devices: DeviceChoice) -> str:
    if devices.is_all:
        return "every device"
    return f"the first {devices.count}" if devices.count is not None else ", ".join(devices.names)


def _shown(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else ",".join(value) if isinstance(value, tuple) else value
