"""Says why containers wait, from all nodes and pods, as the caller may know it."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import functools
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.claim import extended
from fairlead.plan.lease import neighbour
from fairlead.plan.pod import podstate
from fairlead.plan.reservation import use
from fairlead.plan.schedule import waiting as scheduling
from fairlead.plan.schedule.claim.claims import NO_DRIVER
from fairlead.plan.schedule.reservation import reservations
from fairlead.plan.schedule.shard import running
from fairlead.serve.backend.tenancy import own
from fairlead.serve.v1.containers import waitview
from fairlead.serve.v1.containers.life.waiting import DEVICES, NEVER, OTHER, Waiting
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.status.view import STARTING_S
from fairlead.store import tracerecorder
from fairlead.store.port import Selector
from fairlead.wire.fairlead.reservation import Reservation
from fairlead.wire.kubernetes import coordination, core
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_START_S: Final = 60.0
"""The agent reads its configuration while the service starts: earlier steps are another service's."""
_KEPT: Final = 512
"""Most pods of a census that is cached for the next request; such a census takes some MB."""


async def waiting(services: Dependencies, pods: Sequence[core.Pod]) -> dict[str, Waiting]:
    """Return why pods wait, by uid; none for those that do not, or where nodes and pods may not be read."""
    if not any(not pod.spec.node_name and not podstate.is_final(pod) for pod in pods):
        return {}
    try:
        nodes, every = await services.census.list(core.Node), await services.census.list(core.Pod)
    except errors.Denied:
        return {}
    now, found = dt.datetime.now(dt.UTC), {}
    caller = waitview.Caller(
        name=services.caller, whose=functools.partial(own.whose, services.part), kept=await _kept(services)
    )
    sharing, known_classes = await shards(services), await classes(services)
    served = frozenset(extended.served(known_classes))

    def count() -> waitview.Census:
        ours = services.info.scheduler_name
        return waitview.Census(nodes.items, every.items, ours=ours, shards=sharing, served=served)

    is_small = len(every.items) <= _KEPT
    census = services.censuses.of(nodes.items, every.items, sharing, known_classes, make=count) if is_small else count()
    for pod in pods:
        with contextlib.suppress(errors.Invalid):  # a quantity that cannot be read is that pod's fault, not the list's
            found[pod.metadata.uid] = waitview.describe(pod, census, now=now, caller=caller)
    known = {uid: one for uid, one in found.items() if one is not None}
    asking = [pod for pod in pods if pod.metadata.uid in known]
    known |= await _for_windows(services, asking, every.items, now.timestamp())
    claiming = {
        pod.metadata.uid
        for pod in pods
        if (pod.spec.resource_claims or not census.claimed.isdisjoint(podstate.asked_devices(pod)))
        and not scheduling.said(pod)
    } & known.keys()
    if claiming and await _no_driver(services):
        known |= {uid: Waiting(reason=OTHER, message=NO_DRIVER) for uid in claiming}
    if any(map(_lacks_devices, known.values())) and await _is_starting(services):
        return {uid: _not_yet(one) if _lacks_devices(one) else one for uid, one in known.items()}
    if any(map(_lacks_devices, known.values())) and (why := await _refused_configuration(services)):
        return {
            uid: msgspec.structs.replace(one, message=f"{one.message}: {why}") if _lacks_devices(one) else one
            for uid, one in known.items()
        }
    return known


async def _for_windows(
    services: Dependencies, pods: Sequence[core.Pod], every: Sequence[core.Pod], now: float
) -> dict[str, Waiting]:
    """Return the waits of pods whose reservation has no open window or no GPUs left, by uid: nodes do not show them."""
    if not any(map(use.named, pods)):
        return {}
    with contextlib.suppress(errors.Denied, errors.NotFound):
        there = (await services.census.list(Reservation)).items
        items = {(one.metadata.namespace, one.metadata.name): one for one in there}
        gpus_of = functools.partial(reservations.gpus_of, resource=services.info.resource)
        held = collections.Counter[tuple[str, str]]()
        for pod in every:
            if use.named(pod) and pod.spec.node_name and not podstate.is_final(pod):
                held[pod.metadata.namespace, use.named(pod)] += gpus_of(pod)

        def full(pod: core.Pod) -> str:
            key = (pod.metadata.namespace, use.named(pod))
            return use.full(key[1], items[key].spec.gpus, held[key], gpus_of(pod))

        said = (
            (pod.metadata.uid, use.waits(name, items.get((pod.metadata.namespace, name)), now) or full(pod))
            for pod in pods
            if (name := use.named(pod))
        )
        return {uid: Waiting(reason=OTHER, message=words) for uid, words in said if words}
    return {}


async def _kept(services: Dependencies) -> dict[str, tuple[str, ...]]:
    """Return by node which GPUs neighbours keep from tenants, a sentence each; who it is only for administrators."""
    found: dict[str, list[tuple[int, str]]] = {}
    with contextlib.suppress(errors.Denied, errors.NotFound):
        for one in (await services.census.list(GPUDevice)).items:
            if one.status.reason == neighbour.REASON:
                message = one.status.message if services.part is None else neighbour.HIDDEN
                sentence = f"GPU {one.spec.index} is {message}"
                found.setdefault(one.spec.node_name, []).append((one.spec.index, sentence))
    return {node: tuple(words for _, words in sorted(each)) for node, each in found.items()}


async def _is_starting(services: Dependencies) -> bool:
    """Return whether this machine has GPUs, and its service has just started and may offer them in a moment."""
    if not services.info.node or time.time() - services.info.started_at > STARTING_S:
        return False
    with contextlib.suppress(errors.Denied, errors.NotFound):
        return bool((await services.census.list(GPUDevice)).items)
    return False


def _not_yet(found: Waiting) -> Waiting:
    """Return the wait for devices that a node has, and that its agent has yet to offer."""
    message = f"waiting for {found.resource}: the service has just started and offers none yet"
    return msgspec.structs.replace(found, reason=DEVICES, message=message)


async def classes(services: Dependencies) -> tuple[DeviceClass, ...]:
    """Return the DeviceClasses; none: they may not be known."""
    with contextlib.suppress(errors.Denied, errors.NotFound):
        return (await services.census.list(DeviceClass)).items
    return ()


async def _no_driver(services: Dependencies) -> bool:
    """Return whether no driver publishes devices, which the nodes and pods do not show; False: it may not be known."""
    with contextlib.suppress(errors.Denied, errors.NotFound):
        return not (await services.census.list(ResourceSlice)).items
    return False


def _lacks_devices(found: Waiting) -> bool:
    """Return whether a container waits for devices of which there is not one."""
    return found.reason == NEVER and not found.total and "/" in found.resource


async def _refused_configuration(services: Dependencies) -> str:
    """Return why this machine's agent offers no device: its configuration was refused; empty: it was not."""
    if not services.info.node:
        return ""
    about = core.ObjectReference(api_version="v1", kind="Node", name=services.info.node)
    try:
        steps = await tracerecorder.list_steps(services.store, about)
    except errors.Denied:
        return ""
    of_now = [one for one in steps if one.at > services.info.started_at - _START_S]
    told = [one for one in of_now if one.reason in {"ConfigApplied", "ConfigRefused"}]
    return told[-1].message if told and told[-1].reason == "ConfigRefused" else ""


async def shards(services: Dependencies) -> running.Shards:
    """Return which schedulers share the cluster; where their leases cannot be read, one scheduler is assumed."""
    if not services.info.system_namespace:
        return running.WHOLE
    try:
        found = await services.store.list(coordination.Lease, Selector(namespace=services.info.system_namespace))
    except (errors.Denied, errors.NotFound):
        return running.WHOLE
    return running.shards_of(found.items, time.time())
