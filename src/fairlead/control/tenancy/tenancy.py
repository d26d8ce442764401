"""Brings each Tenancy to where its spec says: isolation before any workload, and nothing left after its end.

Making: namespace, then network and packet filter, then quota; Ready says that all of them stand, and neither the API
nor the node accepts a container before that. All of it is looked at again every `control.tenancy_resync_s`: rules that
were flushed are written again, and until then the tenancy is not Ready. Ending, in this order: containers, GPUs that
must be verified, volumes, the namespace with what is in it, the network, registry credentials, and the object last.
Every step is idempotent, so a process that dies between two is made up for by the next reconcile.

A suspended tenancy keeps everything but its processes. Containers that were stopped for it are not started again.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fairlead import backoff, errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.tenancy.port import Network, Possessions
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline, userids
from fairlead.settings import ControlSettings
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta

_MANAGER: Final = "fairlead-tenancy"
_SWEEP_S: Final = (1.0, 60.0)
"""Shortest and longest wait until what a tenancy left, and could not be removed, is tried again."""
_DRAIN_S: Final = 1.0
"""How soon an ending tenancy is looked at again where nothing tells that a step is over."""


class Tenancies:
    """Reconciles tenancies by name."""

    name = "tenancy"

    def __init__(
        self,
        store: Store,
        network: Network,
        possessions: Possessions,
        *,
        control: ControlSettings,
        follows_pods: bool = True,
        gives_user_ids: bool = False,
    ) -> None:
        """Take the store, and the two ports to the place where containers run.

        Args: control: `tenancy_resync_s`, and the limits of pods and volumes for tenancies that set none.
              follows_pods: watch all pods; on a cluster they are too many, and its API server refuses pods of a
              tenancy that is not Ready.
              gives_user_ids: choose users of the host for each tenancy's user namespaces.
        """
        self._store, self._network, self._possessions = store, network, possessions
        self._control, self._follows_pods = control, follows_pods
        self._tenancies: dict[str, Tenancy] = {}
        self._sweeps = backoff.Backoff(first_s=_SWEEP_S[0], last_s=_SWEEP_S[1])
        self._sweep_at = 0.0
        """Monotonic time of the next try; infinite: nothing is left."""
        self._left = ""
        """Reason that was logged last for what is left."""
        self._gives_user_ids = gives_user_ids
        self._user_ids: dict[str, int] = {}
        """First user id chosen, by uid of the tenancy, whose status may not have it yet."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow tenancies; with `follows_pods` all pods too, for tenancies that are suspended or end."""
        own = Watch(kind=Tenancy, keys=self._changed, reset=self._tenancies.clear)
        return (own, Watch(kind=core.Pod, keys=self._pod_changed)) if self._follows_pods else (own,)

    def _changed(self, step: Change[Tenancy]) -> Iterable[str]:
        name = step.object.metadata.name
        if step.kind is ChangeKind.DELETED:
            self._tenancies.pop(name, None)
        else:
            self._tenancies[name] = step.object
        return (name,)

    def _pod_changed(self, step: Change[core.Pod]) -> Iterable[str]:
        namespace = step.object.metadata.namespace
        return [
            one.metadata.name
            for one in self._tenancies.values()
            if (one.spec.suspended or one.metadata.deletion_timestamp) and baseline.namespace_name(one) == namespace
        ]

    async def reconcile(self, key: str) -> float | None:
        """Bring one tenancy to where it should be."""
        await self._sweep()
        try:
            item = await self._store.get(Tenancy, key)
        except errors.NotFound:
            return None
        if item.metadata.deletion_timestamp is not None:
            return await self._end(item)
        if kind.FINALIZER not in item.metadata.finalizers:
            item = await retry.change(self._store, Tenancy, key, _held)
        await self._stand(item)
        if item.spec.suspended:
            await self._stop_pods(baseline.namespace_name(item))
        return self._control.tenancy_resync_s

    async def _sweep(self) -> None:
        """Remove, once a process, networks that no tenancy owns; a failure is logged and tried again later."""
        if time.monotonic() < self._sweep_at:
            return
        every = (await self._store.list(Tenancy)).items
        try:
            await self._network.sweep(every)
        except errors.FairleadError as error:
            self._sweep_at = time.monotonic() + self._sweeps.next()
            if error.reason != self._left:
                telemetry.log.warning("network of no tenancy stays", reason=error.reason, error=errors.sentence(error))
            self._left = error.reason
        else:
            self._sweep_at = math.inf

    # standing

    async def _stand(self, item: Tenancy) -> None:
        """Make every part, and report how each stands; what is in the way of one does not hide the others."""
        found: dict[str, meta.Condition] = {}
        network = kind.NetworkStatus()
        problem = await self._namespace(item)
        found[kind.NAMESPACE_READY] = baseline.condition(item, kind.NAMESPACE_READY, problem, good="Made")
        if problem is None:
            telemetry.crash_point("tenancy.namespace-made")
            try:
                network = await self._network.ensure(item, (await self._store.list(Tenancy)).items)
            except errors.FairleadError as error:
                network, problem = item.status.network, error
            good = "NoNetwork" if item.spec.network.mode == kind.NONE else "RulesInForce"
            found[kind.NETWORK_ISOLATED] = baseline.condition(item, kind.NETWORK_ISOLATED, problem, good=good)
            most = self._control
            limits = baseline.quota(item, pods=most.tenancy_pods, volumes=most.tenancy_volumes)
            found[kind.QUOTA_APPLIED] = baseline.condition(
                item, kind.QUOTA_APPLIED, await self._limits(item, limits), good="Applied" if limits else "NoQuota"
            )
            telemetry.crash_point("tenancy.quota-applied")
            if item.spec.storage.nfs is not None:
                problem, good = await self._mount(item)
                found[kind.VOLUMES_MOUNTED] = baseline.condition(item, kind.VOLUMES_MOUNTED, problem, good=good)
            await self._say(item, baseline.status(item, found, network).phase)
        await self._report(item, found, network)

    async def _say(self, item: Tenancy, phase: str) -> None:
        """Write the phase to the namespace, where a cluster's API server reads whether a pod is accepted."""
        space = await self._store.get(core.Namespace, baseline.namespace_name(item))
        if space.metadata.annotations.get(baseline.STATE) != phase:
            await self._store.apply(baseline.namespace(item, phase), manager=_MANAGER)

    async def _namespace(self, item: Tenancy) -> errors.FairleadError | None:
        wanted = baseline.namespace(item)
        try:
            there = await self._store.get(core.Namespace, wanted.metadata.name)
        except errors.NotFound:
            # Annotations that follow the spec are left to `apply`, which removes them when the spec drops them.
            about = msgspec.structs.replace(wanted.metadata, annotations={})
            there = await self._store.create(core.Namespace(metadata=about))
        if not baseline.is_own(item, there):
            message = f'namespace "{wanted.metadata.name}" is there and is not of this tenancy'
            return errors.Conflict(message, reason="NamespaceTaken", hint="delete the tenancy and create it again")
        if there.metadata.deletion_timestamp is not None:
            message = f'namespace "{wanted.metadata.name}" is being removed'
            return errors.Conflict(message, reason="NamespaceTerminating", hint="delete the tenancy, create it again")
        state = there.metadata.annotations.get(baseline.STATE, kind.PENDING)
        await self._store.apply(baseline.namespace(item, state), manager=_MANAGER)
        return None

    async def _mount(self, item: Tenancy) -> tuple[errors.FairleadError | None, str]:
        try:
            return None, await self._possessions.mount_volumes(item)
        except errors.FairleadError as error:
            return error, ""

    async def _limits(self, item: Tenancy, limits: core.ResourceQuota | None) -> errors.FairleadError | None:
        """Bring account, limits of each container and quota to what the spec says; return what is in the way."""
        try:
            await self._store.apply(baseline.account(item), manager=_MANAGER)
            for one, made in (
                (core.LimitRange, baseline.limit_range(item)),
                (core.ResourceQuota, limits),
            ):
                if made is not None:
                    await self._store.apply(made, manager=_MANAGER)
                    continue
                with contextlib.suppress(errors.NotFound):
                    await self._store.delete(one, baseline.QUOTA, baseline.namespace_name(item))
        except errors.FairleadError as error:
            return error
        return None

    async def _report(self, item: Tenancy, found: Mapping[str, meta.Condition], network: kind.NetworkStatus) -> None:
        first = await self._choose_user_ids(item)

        def told(fresh: Tenancy) -> Tenancy | None:
            if fresh.metadata.uid != item.metadata.uid or fresh.metadata.generation != item.metadata.generation:
                return None  # the next look is about that one
            status = baseline.status(fresh, found, network)
            return msgspec.structs.replace(fresh, status=msgspec.structs.replace(status, first_user_id=first))

        was_ready = baseline.is_ready(item)
        with contextlib.suppress(errors.NotFound):
            stored = await retry.change_status(self._store, Tenancy, item.metadata.name, told)
            if baseline.is_ready(stored) != was_ready:
                problem = baseline.not_ready(stored)
                state, reason = stored.status.phase, problem.message if problem else ""
                telemetry.log.info("tenancy changed", tenant=item.metadata.name, state=state, reason=reason)

    async def _choose_user_ids(self, item: Tenancy) -> int:
        """Return the first of the tenancy's user ids on this machine, chosen once; 0: it has none here."""
        if not self._gives_user_ids or item.status.first_user_id:
            return item.status.first_user_id
        uid = item.metadata.uid
        every = (await self._store.list(Tenancy)).items
        # No await from here on: another tenancy may be reconciled at the same time.
        if uid not in self._user_ids:
            self._user_ids = {one: first for one, first in self._user_ids.items() if one in _uids(every)}
            taken = {*self._user_ids.values(), *(one.status.first_user_id for one in every)}
            self._user_ids[uid] = userids.choose(uid, taken)
        return self._user_ids[uid]

    # ending

    async def _stop_pods(self, namespace: str) -> None:
        for pod in (await self._store.list(core.Pod, Selector(namespace=namespace))).items:
            if podstate.is_final(pod) or pod.status.stop_request is not None:
                continue
            with contextlib.suppress(errors.NotFound):
                await self._possessions.stop(pod)

    async def _end(self, item: Tenancy) -> float | None:
        """Take the next step towards the end; returns when to look again."""
        name, namespace = item.metadata.name, baseline.namespace_name(item)
        if problem := await self._drain(item, namespace):
            await self._report_end(item, problem)
            return _DRAIN_S
        every = [one for one in (await self._store.list(Tenancy)).items if one.metadata.uid != item.metadata.uid]
        try:
            await self._network.remove(item.metadata.uid, every)
        except errors.FairleadError as error:
            await self._report_end(item, error)
            return _DRAIN_S
        telemetry.crash_point("tenancy.network-removed")
        await self._possessions.forget_credentials(item.metadata.uid)
        telemetry.crash_point("tenancy.credentials-removed")
        with contextlib.suppress(errors.NotFound):
            await retry.change(self._store, Tenancy, name, lambda fresh: _released(fresh, item.metadata.uid))
        telemetry.log.info("tenancy gone", tenant=name)
        return None

    async def _drain(self, item: Tenancy, namespace: str) -> errors.FairleadError | None:
        """Remove what is in the namespace, in order, and the namespace; return what is still in the way."""
        try:
            space = await self._store.get(core.Namespace, namespace)
        except errors.NotFound:
            return None
        if not baseline.is_own(item, space):
            return None  # another's: nothing of ours is in it
        if space.metadata.deletion_timestamp is None:
            await self._say(item, kind.TERMINATING)
        if left := await self._delete_pods(namespace):
            return _waiting("ContainersLeft", f"{len(left)} still to end: {', '.join(left[:5])}")
        if held := await self._possessions.held_gpus(namespace):
            return _waiting("GPUsUnverified", f"{len(held)} GPUs are still to be verified: {', '.join(held[:5])}")
        return await self._remove(item, space)

    async def _delete_pods(self, namespace: str) -> list[str]:
        """Ask for the end of every container; return those that are still there."""
        here = Selector(namespace=namespace)
        for pod in (await self._store.list(core.Pod, here)).items:
            about = pod.metadata
            if about.deletion_timestamp is None:
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await self._store.delete(core.Pod, about.name, namespace, uid=about.uid)
        return [pod.metadata.name for pod in (await self._store.list(core.Pod, here)).items]

    async def _remove(self, item: Tenancy, space: core.Namespace) -> errors.FairleadError | None:
        """Remove an emptied namespace with its volumes; return what is in the way."""
        name = space.metadata.name
        try:
            if space.metadata.deletion_timestamp is None:
                await self._possessions.reach_volumes(item)
            await self._possessions.remove_volumes(name)
            await self._possessions.unmount_volumes(name)
            telemetry.crash_point("tenancy.volumes-removed")
            await self._store.delete(core.Namespace, name, uid=space.metadata.uid)
            telemetry.crash_point("tenancy.namespace-removed")
            await self._store.get(core.Namespace, name)
        except errors.NotFound:
            return None
        except errors.FairleadError as error:
            return error
        return _waiting("NamespaceTerminating", f"namespace {name} is not empty yet")

    async def _report_end(self, item: Tenancy, problem: errors.FairleadError) -> None:
        def told(fresh: Tenancy) -> Tenancy:
            ready = baseline.condition(fresh, kind.READY, problem, good="")
            conditions = meta.with_condition(fresh.status.conditions, ready)
            status = msgspec.structs.replace(fresh.status, phase=kind.TERMINATING, conditions=conditions)
            return msgspec.structs.replace(fresh, status=status)

        with contextlib.suppress(errors.NotFound):
            await retry.change_status(self._store, Tenancy, item.metadata.name, told)


def _uids(every: Iterable[Tenancy]) -> frozenset[str]:
    return frozenset(one.metadata.uid for one in every)


def _waiting(reason: str, message: str) -> errors.FairleadError:
    return errors.Unavailable(message, reason=reason)


def _held(item: Tenancy) -> Tenancy:
    about = msgspec.structs.replace(item.metadata, finalizers=(*item.metadata.finalizers, kind.FINALIZER))
    return msgspec.structs.replace(item, metadata=about)


def _released(item: Tenancy, uid: str) -> Tenancy | None:
    if item.metadata.uid != uid:
        return None
    left = tuple(one for one in item.metadata.finalizers if one != kind.FINALIZER)
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, finalizers=left))
