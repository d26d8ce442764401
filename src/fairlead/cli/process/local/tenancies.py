"""Composes what keeps tenancies on one machine: networks, what they hold, and how their networks are tried."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from fairlead import settings
from fairlead.control.tenancy import tenancy
from fairlead.engine.machine import MachineEngine
from fairlead.node.kubelet import sandbox
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.tenancy import network, trial
from fairlead.node.tenancy.exports import Exports
from fairlead.node.tenancy.registries import Registries
from fairlead.plan.pod import podstate
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.volumes import LocalVolumes
from fairlead.store import retry
from fairlead.store.port import AdmittingStore, Selector, Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core
from fairlead.wire.oci.registryauth import Login


@dataclass(frozen=True, slots=True, kw_only=True)
class Possessions:
    """`control.tenancy.port.Possessions` of one machine."""

    store: AdmittingStore
    volumes: LocalVolumes
    registries: Registries
    exports: Exports
    unverified: Callable[[str], tuple[str, ...]]

    async def mount_volumes(self, item: Tenancy) -> str:
        """See `control.tenancy.port.Possessions.mount_volumes`."""
        await self.exports.ensure(item)
        return "Mounted"

    async def reach_volumes(self, item: Tenancy) -> None:
        """See `control.tenancy.port.Possessions.reach_volumes`."""
        await self.exports.ensure(item)

    async def unmount_volumes(self, namespace: str) -> None:
        """See `control.tenancy.port.Possessions.unmount_volumes`."""
        await self.exports.release(namespace)

    async def remove_volumes(self, namespace: str) -> None:
        """See `control.tenancy.port.Possessions.remove_volumes`."""
        for claim in (await self.store.list(core.PersistentVolumeClaim, Selector(namespace=namespace))).items:
            await self.volumes.remove(claim.metadata.name, namespace)

    async def forget_credentials(self, uid: str) -> None:
        """See `control.tenancy.port.Possessions.forget_credentials`."""
        await asyncio.to_thread(self.registries.forget, uid)

    async def stop(self, pod: core.Pod) -> None:
        """See `control.tenancy.port.Possessions.stop`."""
        about = pod.metadata
        await retry.change_status(self.store, core.Pod, about.name, _stopped, namespace=about.namespace)

    async def held_gpus(self, namespace: str) -> tuple[str, ...]:
        """See `control.tenancy.port.Possessions.held_gpus`."""
        return self.unverified(namespace)


def _stopped(pod: core.Pod) -> core.Pod | None:
    if podstate.is_final(pod):
        return None
    return msgspec.structs.replace(pod, status=podstate.stopped(pod, None))


@dataclass(frozen=True, slots=True)
class MachineCredentials:
    """`serve.backend.port.RegistryCredentials` in files of this machine."""

    registries: Registries

    async def add(self, item: Tenancy, registry: str, login: Login) -> tuple[str, ...]:
        """See `serve.backend.port.RegistryCredentials.add`."""
        return await asyncio.to_thread(self.registries.add, item.metadata.uid, registry, login)

    async def drop(self, item: Tenancy, registry: str) -> tuple[str, ...]:
        """See `serve.backend.port.RegistryCredentials.drop`."""
        return await asyncio.to_thread(self.registries.drop, item.metadata.uid, registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenancyParts:
    """What runs tenancies on this machine."""

    controller: tenancy.Tenancies
    trial: trial.Trial
    credentials: MachineCredentials


def reach(store: Store, exports: Exports) -> Callable[[str], Awaitable[None]]:
    """Return what raises where the volumes of a namespace are on an export that is away."""

    async def check(namespace: str) -> None:
        item = baseline.find_by_namespace(namespace, (await store.list(Tenancy)).items)
        if item is not None:
            await exports.check(item)

    return check


def compose(
    config: settings.Settings,
    store: AdmittingStore,
    engine: MachineEngine,
    *,
    unverified: Callable[[str], tuple[str, ...]],
) -> TenancyParts:
    """Return the controller of tenancies and the trial of their networks, for one machine."""
    home = checkpoint.home_id(config.state.folder / "kubelet")

    async def image() -> str:
        return await sandbox.ensure_image(engine, platform.machine())

    has_default = config.engine.network in {"auto", "bridge"}
    tried = trial.Trial(engine, home=home, image=image, default_network=has_default)
    networks = network.MachineNetworks(engine, home=home, pool=config.control.tenancy_subnets, empty=tried.sweep)
    exports = Exports(config.claims_folder)
    volumes = LocalVolumes(store=store, folder=config.claims_folder, reach=reach(store, exports))
    registries = Registries(config.registries_folder)
    possessions = Possessions(
        store=store, volumes=volumes, registries=registries, exports=exports, unverified=unverified
    )
    controller = tenancy.Tenancies(store, networks, possessions, control=config.control, gives_user_ids=True)
    return TenancyParts(controller=controller, trial=tried, credentials=MachineCredentials(registries))
