"""Ends pods whose claims hold devices with a NoExecute taint that they do not tolerate, and says so on the rules.

What kube-controller-manager does on a cluster, for one machine. A rule whose effect is None ends nothing: its status
says what it would end.
Source: kubernetes 1.37 pkg/controller/devicetainteviction/device_taint_eviction.go (behaviour).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.plan.claim.life import eviction, lifecycle
from fairlead.plan.claim.life.eviction import Census, Eviction, Taint
from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Store
from fairlead.store.subresource import Placement
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

K = TypeVar("K")
T = TypeVar("T", bound=Object)
_POD, _RULE = "pod:", "rule:"
REASON: Final = "DeletionByDeviceTaintManager"
STATUS_S: Final = 10.0
"""How long after an eviction the status of its rule is written, once for many pods."""


class DeviceTaints:
    """Keeps pods off tainted devices."""

    name = "devicetaint"

    def __init__(self, store: Store, placement: Placement, *, now: Callable[[], float] = time.time) -> None:
        """Take where objects are, and what evicts. Args: now: Unix seconds."""
        self._store, self._placement, self._now = store, placement, now
        self._pods: dict[str, core.Pod] = {}
        """By namespace and name (`default/p`): pods that claim."""
        self._claims: dict[tuple[str, str], ResourceClaim] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._published: Mapping[DeviceID, tuple[Taint, ...]] | None = None
        """Taints of drivers; None: slices changed since they were read."""
        self._evicted: dict[str, set[str]] = {}
        """By rule's uid: uids of pods that were evicted because of it."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods, claims, slices and rules."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._pods.clear),
            Watch(kind=ResourceClaim, keys=self._claim_changed, reset=self._claims.clear),
            Watch(kind=ResourceSlice, keys=self._slice_changed, reset=self._forget_slices),
            Watch(kind=DeviceTaintRule, keys=self._rule_changed, reset=self._rules.clear),
        )

    def _forget_slices(self) -> None:
        self._slices.clear()
        self._published = None

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        pod = change.object
        if not lifecycle.has_claims(pod):
            return ()
        place = f"{pod.metadata.namespace}/{pod.metadata.name}"
        _keep(self._pods, place, change)
        return (f"{_POD}{place}",)

    def _claim_changed(self, change: Change[ResourceClaim]) -> Iterable[str]:
        claim = change.object
        _keep(self._claims, (claim.metadata.namespace, claim.metadata.name), change)
        pods = (f"{_POD}{claim.metadata.namespace}/{user.name}" for user in lifecycle.pod_users(claim))
        held = [id_ for id_, _ in eviction.devices(claim)]
        rules = (name for name, rule in self._rules.items() if any(eviction.selects(rule, id_) for id_ in held))
        return [*pods, *(f"{_RULE}{name}" for name in rules)]

    def _slice_changed(self, change: Change[ResourceSlice]) -> Iterable[str]:
        _keep(self._slices, change.object.metadata.name, change)
        self._published = None
        return self._every()

    def _rule_changed(self, change: Change[DeviceTaintRule]) -> Iterable[str]:
        about = change.object.metadata
        _keep(self._rules, about.name, change)
        if change.kind is ChangeKind.DELETED:
            self._evicted.pop(about.uid, None)
        return self._every()

    def _every(self) -> list[str]:
        return [*(f"{_POD}{place}" for place in self._pods), *(f"{_RULE}{name}" for name in self._rules)]

    async def reconcile(self, key: str) -> float | None:
        """Evict one pod whose time has come, or write how far a rule is; returns seconds until that is due."""
        if key.startswith(_RULE):
            return await self._keep_rule(key.removeprefix(_RULE))
        pod = self._pods.get(key.removeprefix(_POD))
        found = None if pod is None else self._due(pod, self._taints)
        if pod is None or found is None or _is_ending(pod):
            return None
        if (left_s := found.at - self._now()) > 0:
            return left_s
        why = f"a device of its claims has a NoExecute taint, set by {', '.join(found.origins)}"
        telemetry.crash_point("devicetaint.before-evict")
        with contextlib.suppress(errors.NotFound, errors.Conflict):  # another pod has its name by now
            await self._placement.evict(pod, grace_s=None, why=why, reason=REASON)
            for rule in found.rules:
                self._evicted.setdefault(rule, set()).add(pod.metadata.uid)
        return None

    def _due(self, pod: core.Pod, find: eviction.Find) -> Eviction | None:
        namespace = pod.metadata.namespace
        claims = (self._claims.get((namespace, name)) for name in lifecycle.claim_names(pod))
        own = (one for one in claims if one is not None and _is_usable(one, pod))
        return eviction.of_pod(pod, own, find)

    def _taints(self, device: DeviceID) -> Iterator[Taint]:
        if self._published is None:
            self._published = eviction.of_slices(self._slices.values())
        yield from self._published.get(device, ())
        for rule in self._rules.values():
            if eviction.selects(rule, device):
                yield eviction.of_rule(rule)

    async def _keep_rule(self, name: str) -> float | None:
        rule = self._rules.get(name)
        if rule is None:
            return None
        wanted = eviction.condition(rule, self._census(rule), now=meta.now())
        with contextlib.suppress(errors.NotFound):
            await retry.change_status(self._store, DeviceTaintRule, name, lambda fresh: _said(fresh, rule, wanted))
        return STATUS_S if wanted.status == "True" else None

    def _census(self, rule: DeviceTaintRule) -> Census:
        """Count what a rule concerns, as if its effect were NoExecute."""
        taint = eviction.of_rule(rule)
        acting = Taint(msgspec.structs.replace(taint.taint, effect=eviction.NO_EXECUTE), taint.origin, taint.rule)
        if self._published is None:
            self._published = eviction.of_slices(self._slices.values())
        held = [id_ for claim in self._claims.values() for id_, _ in eviction.devices(claim)]
        pending = (
            pod
            for pod in self._pods.values()
            if not _is_ending(pod) and self._due(pod, lambda id_: (acting,) if eviction.selects(rule, id_) else ())
        )
        return Census(
            published=sum(eviction.selects(rule, id_) for id_ in self._published),
            allocated=sum(eviction.selects(rule, id_) for id_ in held),
            pending=tuple(pending),
            evicted=len(self._evicted.get(rule.metadata.uid, ())),
        )


def _keep(known: dict[K, T], key: K, change: Change[T]) -> None:
    if change.kind is ChangeKind.DELETED:
        known.pop(key, None)
    else:
        known[key] = change.object


def _is_ending(pod: core.Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None or pod.status.stop_request is not None


def _is_usable(claim: ResourceClaim, pod: core.Pod) -> bool:
    return lifecycle.owning_pod(claim) is None or lifecycle.is_for(claim, pod)


def _said(fresh: DeviceTaintRule, rule: DeviceTaintRule, wanted: meta.Condition) -> DeviceTaintRule | None:
    """Return a rule whose status says how far it is; None: it does, or is another one by now."""
    before = meta.find_condition(fresh.status.conditions, wanted.type)
    if fresh.metadata.uid != rule.metadata.uid:
        return None
    if (
        before is not None
        and msgspec.structs.replace(wanted, last_transition_time=before.last_transition_time) == before
    ):
        return None
    conditions = meta.with_condition(fresh.status.conditions, wanted)
    return msgspec.structs.replace(fresh, status=msgspec.structs.replace(fresh.status, conditions=conditions))
