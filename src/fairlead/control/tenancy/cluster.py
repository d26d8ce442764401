"""Isolates tenancies on a cluster by network policies, and ends what they hold there.

Policies are objects of the API server: they are applied before the namespace accepts a pod, applied again every
`control.tenancy_resync_s`, and compared with what was stored. Nothing in Kubernetes says whether a policy is obeyed, so
a tenancy is called isolated only where every node is marked by a network plugin that is known to enforce them, or where
an administrator says that they are enforced. A policy that another client put into the namespace can only widen it, so
it keeps the tenancy from being Ready.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from fairlead import errors, telemetry
from fairlead.control.tenancy.exports import ClusterExports
from fairlead.plan.tenancy import baseline, enforcement, policy
from fairlead.store.port import Selector, Store
from fairlead.wire.fairlead.tenancy import NetworkStatus, Tenancy
from fairlead.wire.kubernetes import core, gpulease, networking, workload
from fairlead.wire.kubernetes.node.nodenetwork import NodeNetwork

FRESH_S: Final = 5.0
"""How long what was read of nodes counts as known."""
_MANAGER: Final = "fairlead-tenancy"
_CILIUM: Final = "ciliumnetworkpolicies.cilium.io"


class ClusterNetworks:
    """`control.tenancy.port.Network` over an API server's network policies."""

    def __init__(self, store: Store, *, enforcer: str = enforcement.AUTO, networks: Sequence[str] = ()) -> None:
        """Take the store, what is said to enforce policies, and networks of the cluster that Nodes do not name."""
        self._store, self._enforcer, self._networks = store, enforcer, tuple(networks)
        self._seen: tuple[float, policy.Surroundings, enforcement.Enforcement] | None = None

    async def ensure(self, item: Tenancy, every: Sequence[Tenancy]) -> NetworkStatus:  # noqa: ARG002 labels tell apart
        """See `control.tenancy.port.Network.ensure`.

        Raises: Unavailable (`NotEnforced`, `RulesNotInForce`, `ForeignPolicy`), Invalid (`EgressDenied`).
        """
        around, found = await self._surroundings()
        for wanted in policy.render(item, around):
            stored = await self._store.apply(wanted, manager=_MANAGER)
            if stored.spec != wanted.spec:
                message = f"{wanted.KIND} {wanted.metadata.name} is stored otherwise than it was written"
                hint = "does an admission webhook change it? `kubectl get -o yaml` shows it"
                raise errors.Unavailable(message, reason="RulesNotInForce", hint=hint)
            telemetry.crash_point("tenancy.policy-applied")
        await self._refuse_others(item, around)
        if found.problem:
            raise errors.Unavailable(found.problem, reason="NotEnforced", hint=found.hint)
        return NetworkStatus(enforced_by=found.by)

    async def remove(self, uid: str, every: Sequence[Tenancy]) -> None:  # noqa: ARG002 labels tell apart
        """See `control.tenancy.port.Network.remove`: what is in the namespace goes with it."""
        if await self._serves_cilium():
            await self._remove_clusterwide(lambda found: found == uid)

    async def sweep(self, every: Sequence[Tenancy]) -> None:
        """See `control.tenancy.port.Network.sweep`."""
        known = {one.metadata.uid for one in every}
        if await self._serves_cilium():
            await self._remove_clusterwide(lambda found: found not in known)

    async def _remove_clusterwide(self, is_gone: Callable[[str], bool]) -> None:
        for one in (await self._store.list(networking.CiliumClusterwideNetworkPolicy)).items:
            uid = one.metadata.labels.get(baseline.UID)
            if uid is not None and is_gone(uid):
                with contextlib.suppress(errors.NotFound):
                    await self._store.delete(networking.CiliumClusterwideNetworkPolicy, one.metadata.name)

    async def _refuse_others(self, item: Tenancy, around: policy.Surroundings) -> None:
        here = Selector(namespace=baseline.namespace_name(item))
        found = [*(await self._store.list(networking.NetworkPolicy, here)).items]
        names = [one.metadata.name for one in found]
        if around.cilium:
            names += [one.metadata.name for one in (await self._store.list(networking.CiliumNetworkPolicy, here)).items]
        if others := sorted(set(names) - policy.NAMES):
            message = f"policies that are not ours may open namespace {here.namespace}: {', '.join(others[:3])}"
            hint = "delete them; what the tenancy is allowed stands in its spec.network"
            raise errors.Unavailable(message, reason="ForeignPolicy", hint=hint)

    async def _surroundings(self) -> tuple[policy.Surroundings, enforcement.Enforcement]:
        if self._seen is None or time.monotonic() - self._seen[0] > FRESH_S:
            nodes = (await self._store.list(NodeNetwork)).items
            cilium = await self._serves_cilium()
            around = policy.Surroundings(own=enforcement.networks(nodes, self._networks), cilium=cilium)
            self._seen = (time.monotonic(), around, enforcement.judge(nodes, self._enforcer, cilium=cilium))
        return self._seen[1], self._seen[2]

    async def _serves_cilium(self) -> bool:
        try:
            await self._store.get(workload.CustomResourceDefinition, _CILIUM)
        except errors.NotFound:
            return False
        return True


class ClusterPossessions:
    """`control.tenancy.port.Possessions` over an API server."""

    def __init__(self, store: Store) -> None:
        """Take the store."""
        self._store, self._exports = store, ClusterExports(store)

    async def mount_volumes(self, item: Tenancy) -> str:
        """See `control.tenancy.port.Possessions.mount_volumes`: kubelets mount the claim."""
        await self._exports.ensure(item)
        return "Bound"

    async def reach_volumes(self, item: Tenancy) -> None:
        """See `control.tenancy.port.Possessions.reach_volumes`: no file is removed from here."""

    async def unmount_volumes(self, namespace: str) -> None:
        """See `control.tenancy.port.Possessions.unmount_volumes`."""
        await self._exports.release(namespace)

    async def remove_volumes(self, namespace: str) -> None:
        """See `control.tenancy.port.Possessions.remove_volumes`: claims go with the namespace, files by their class."""

    async def forget_credentials(self, uid: str) -> None:
        """See `control.tenancy.port.Possessions.forget_credentials`: the Secret goes with the namespace."""

    async def stop(self, pod: core.Pod) -> None:
        """See `control.tenancy.port.Possessions.stop`: Kubernetes stops a pod by deleting it."""
        about = pod.metadata
        if about.deletion_timestamp is None:
            with contextlib.suppress(errors.Conflict):
                await self._store.delete(core.Pod, about.name, about.namespace, uid=about.uid)

    async def held_gpus(self, namespace: str) -> tuple[str, ...]:
        """See `control.tenancy.port.Possessions.held_gpus`, read from GPULeases.

        Only agents whose nodes keep a ledger write leases; the ledger itself, not this check, keeps a GPU back.
        """
        try:
            leases = (await self._store.list(gpulease.GPULease)).items
        except errors.NotFound:
            return ()  # the kind is not served: no agent keeps leases
        held = (one for one in leases if one.status.state not in gpulease.ENDED)
        return tuple(one.spec.gpu for one in held if namespace in {who.namespace for who in one.status.holders})


def networks_of(setting: str) -> tuple[str, ...]:
    """Return the networks of the setting `control.tenancy_networks`. Raises: Invalid."""
    found = tuple(one.strip() for one in setting.split(",") if one.strip())
    for one in found:
        if problem := baseline.cidr_problem(one):
            message = f'control.tenancy_networks: "{one}" {problem}'
            raise errors.Invalid(message, reason="SettingInvalid", hint="such as 10.96.0.0/12,2001:db8::/48")
    return found
