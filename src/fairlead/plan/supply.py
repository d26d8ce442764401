"""Plans what a node gives away: the devices of each resource, and why others are withheld. Pure.

`plan` makes one `Supply` of a snapshot of the inventory, the configuration and what the agent's parts report (`Facts`),
in fixed stages: devices by resource, sharing, vGPUs, slots, holders under another name, reasons to withhold. Device
plugins serve it; objects, conditions and traces show it. A device that is withheld stays listed, unhealthy with its
reason, so that the kubelet keeps its capacity.

It stands above `sharing` and `cdi`, whose rules it applies, and so is no module of `gpu`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.ids import GPUUUID
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import clash, deviceids, door
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.nodeconfig import NodeConfig
from fairlead.plan.gpu.offer import advertise, migoffer, vgpuoffer
from fairlead.plan.gpu.offer.advertise import Advertisement
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.sharing import amounts, mps
from fairlead.plan.vfio import slot as slots
from fairlead.plan.vfio import slotoffer, switchoffer
from fairlead.wire.kubernetes import core

SPEC_MISSING: Final = "CDISpecMissing"
LIST_TOO_LARGE: Final = "DeviceListTooLarge"
_LARGEST_LIST: Final = 4 << 20
"""Bytes of what a kubelet takes from a plugin at once. Source: grpc-go's default, kubernetes issue 109304."""
_LINE: Final = 24
"""Bytes of a device in it beside its id, at most: health, NUMA node, tags and lengths."""

Problem = tuple[str, str]
"""Reason and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """CDI specs on this node's disk."""

    names: Collection[str] = frozenset()
    """Qualified names that our files define."""
    folder: str = ""
    conflicts: tuple[conflict.Conflict, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who holds what, as the kubelet lists it."""

    unknown: str = ""
    """Why it is not known; empty: it is."""
    listed: tuple[Holding, ...] = ()
    pods: Collection[core.Pod] | None = None
    """This node's pods; None: they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MPSFacts:
    """The node's control daemons."""

    folders: Mapping[GPUUUID, tuple[str, str]]
    """Of each GPU that may be shared: that of the daemon's pipes, and what is /dev/shm for its clients."""
    states: Mapping[GPUUUID, mps.DaemonState]
    """Of each GPU that has, or is to have, a daemon."""


_NO_HOLDERS: Final = door.Facts()
_ALL_BY_PLUGIN: Final = door.Doors()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the agent's parts report at one moment."""

    engine: Problem | None = None
    """Why the engine would start containers without their devices; None: it would not, or it is not known yet."""
    doors: door.Facts = _NO_HOLDERS
    withheld: Sequence[Mapping[str, Problem]] = ()
    """By GPU or device, of each part that withholds any; the first part that names a device counts."""
    specs: Specs = Specs()
    mps: MPSFacts | None = None
    """None: no GPU here can be shared by MPS."""
    holders: Holders = Holders()


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What a node gives away."""

    doors: door.Doors = _ALL_BY_PLUGIN
    """Which GPUs are given away by ResourceClaims, and by no device plugin."""
    resources: tuple[Advertisement, ...] = ()
    """A resource that has no devices any more is listed once without any."""
    withheld: Mapping[GPUUUID, rules.Verdict] = field(default_factory=dict)
    """GPUs that are well and are not given away, with why."""
    clashes: Mapping[clash.Key, clash.Clash] = field(default_factory=dict)
    """Devices whose GPU a container has under another resource's name."""
    daemons: Mapping[GPUUUID, mps.Daemon] = field(default_factory=dict)
    """Control daemons of MPS that it needs."""


NOTHING: Final = Supply()


def plan(
    snapshot: Snapshot,
    config: NodeConfig,
    facts: Facts,
    before: Supply = NOTHING,
    *,
    resource: str,
    naming: slots.Naming | None = None,
) -> Supply:
    """Return what a node gives away.

    Args: before: the supply that this one replaces: its resources end with an empty list, and its clashes stand as long
          as their pods live.   resource: name of NVIDIA's whole GPUs.
          naming: of the GPUs that are passed through; None: none is given away.
    """
    doors = door.plan_doors(
        snapshot.known.values(),
        config.claims,
        facts.doors,
        before.doors.claimed,
        snapshot.passthrough if naming is not None else (),
    )
    whole = _without(_plan_whole(snapshot, config, resource), doors.claimed)
    offered = amounts.plan_shared(whole, config, snapshot.known)
    daemons: Mapping[GPUUUID, mps.Daemon] = {}
    if facts.mps is not None:
        offered = mps.plan_clients(offered, snapshot.known, facts.mps.folders)
        daemons = mps.plan_daemons(offered)
    offered = _with_vgpus(offered, snapshot, resource)
    found = naming.slots(snapshot.passthrough, snapshot.partitions) if naming is not None else ()
    by_plugin = [one for one in found if not doors.claimed & {gpu.key for gpu in one.gpus}]
    passed, unnamed = slotoffer.plan_resources(by_plugin, snapshot.verdicts, {ad.resource for ad in offered})
    switches = switchoffer.plan_resource(
        snapshot.switches,
        resource=naming.switches if naming is not None else cdikind.SWITCHES,
        with_iommufd=naming is not None and naming.with_iommufd,
    )
    offered = (*offered, *passed, *switches)
    table = {**deviceids.make_table(snapshot.known.values()), **slotoffer.words(found)}
    clashes = _find_clashes(offered, table, facts.holders, before.clashes)
    resources, withheld = _withhold(offered, facts, clashes)
    named = {ad.resource for ad in resources}
    ended = (dataclasses.replace(ad, devices=()) for ad in before.resources if ad.resource not in named)
    return Supply(
        doors=doors,
        resources=(*resources, *ended),
        withheld={**unnamed, **withheld},
        clashes=clashes,
        daemons=daemons,
    )


def without_ended(found: Supply) -> Supply:
    """Return a supply without the resources that have no devices."""
    return dataclasses.replace(found, resources=tuple(ad for ad in found.resources if ad.devices))


def _plan_whole(snapshot: Snapshot, config: NodeConfig, resource: str) -> tuple[Advertisement, ...]:
    minors = {name: minor for driver in snapshot.drivers for name, minor in driver.mig_minors}
    return advertise.plan_advertisements(
        snapshot.inventory,
        nvidia_resource=resource,
        verdicts=snapshot.verdicts,
        known=snapshot.known,
        mig=migoffer.MIGOffer(strategy=config.mig_strategy, verdicts=snapshot.device_verdicts, minors=minors),
        names=advertise.Names(gpus=config.document.gpus, mig=config.document.mig),
    )


def _without(offered: Iterable[Advertisement], claimed: Collection[GPUUUID]) -> tuple[Advertisement, ...]:
    """Return the resources without the devices of some GPUs; one that has no other is left out."""
    if not claimed:
        return tuple(offered)
    left = (
        dataclasses.replace(ad, devices=tuple(device for device in ad.devices if device.gpu not in claimed))
        for ad in offered
    )
    return tuple(ad for ad in left if ad.devices)


def _with_vgpus(offered: tuple[Advertisement, ...], snapshot: Snapshot, resource: str) -> tuple[Advertisement, ...]:
    """Add the vGPUs that this machine lends, and leave out their boards."""
    lent = vgpuoffer.plan_vgpus(
        snapshot.drivers,
        snapshot.inventory,
        domain=resource.partition("/")[0],
        verdicts=snapshot.verdicts,
        known=snapshot.known,
        taken={ad.resource for ad in offered},
    )
    return (*vgpuoffer.without_lenders(offered, snapshot.drivers, snapshot.known), *lent)


def _find_clashes(
    offered: Iterable[Advertisement],
    table: deviceids.Table,
    holders: Holders,
    before: Mapping[clash.Key, clash.Clash],
) -> Mapping[clash.Key, clash.Clash]:
    listed = holders.listed if holders.pods is None else clash.without_ended(holders.listed, holders.pods)
    found = clash.find_clashes(offered, listed, table, holders.pods or ())
    return clash.plan_kept(found, before, holders.pods)


def _withhold(
    offered: Iterable[Advertisement], facts: Facts, clashes: Mapping[clash.Key, clash.Clash]
) -> tuple[tuple[Advertisement, ...], Mapping[GPUUUID, rules.Verdict]]:
    """Return the resources with what is withheld as unhealthy, and by GPU why."""
    disputed = {name: one for one in facts.specs.conflicts for name in one.devices}
    withheld, resources = dict[GPUUUID, rules.Verdict](), list[Advertisement]()
    for ad in offered:
        if (problem := _too_large(ad)) is not None:  # the kubelet would end the plugin, again and again
            withheld |= {device.gpu: _verdict(problem) for device in ad.devices}
            resources.append(dataclasses.replace(ad, devices=()))
            continue
        devices = list[Device]()
        for device in ad.devices:
            problem = next(_problems(facts, disputed, clashes, ad, device), None) if device.is_healthy else None
            if problem is None:
                devices.append(device)
                continue
            if not device.slot_gpus:  # each of its GPUs is judged as a slot of its own
                withheld[device.gpu] = _verdict(problem)
            devices.append(dataclasses.replace(device, is_healthy=False, reason=problem[0]))
        resources.append(dataclasses.replace(ad, devices=tuple(devices)))
    return tuple(resources), withheld


def _verdict(problem: Problem) -> rules.Verdict:
    return rules.Verdict(state=rules.State.FAULTY, reason=problem[0], message=problem[1])


def _problems(
    facts: Facts,
    disputed: Mapping[str, conflict.Conflict],
    clashes: Mapping[clash.Key, clash.Clash],
    ad: Advertisement,
    device: Device,
) -> Iterator[Problem]:
    """Yield what speaks against giving a device away that is well; the first is the one that is shown."""
    if facts.engine is not None:
        yield facts.engine
    for named in facts.withheld:
        for name in (*map(str, device.gpus), device.name):
            if (problem := named.get(name)) is not None:
                yield problem
    if (found := disputed.get(device.cdi_name)) is not None:
        yield conflict.REASON, f"{found.message}; {found.remedy}"
    if device.cdi_name not in facts.specs.names:
        yield SPEC_MISSING, f"no CDI spec in {facts.specs.folder} names it; the agent's log says why"
    if facts.mps is not None and (problem := mps.problem(facts.mps.states, ad.rule.means, device)) is not None:
        yield problem
    if facts.holders.unknown:
        yield clash.UNKNOWN, facts.holders.unknown
    if (held := clashes.get((ad.resource, device.id))) is not None:
        yield clash.REASON, held.message


def _too_large(ad: Advertisement) -> Problem | None:
    """Return why a kubelet would not take the list of a resource's devices, None where it would."""
    size = sum(len(device.id) + _LINE for device in ad.devices)
    if size <= _LARGEST_LIST:
        return None
    message = (
        f"{len(ad.devices)} devices of {ad.resource} are a list of {size} bytes, and a kubelet takes {_LARGEST_LIST}: "
        f"configure fewer replicas, {len(ad.devices) * _LARGEST_LIST // size} in all"
    )
    return LIST_TOO_LARGE, message
