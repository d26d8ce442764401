"""Declares what the kubelet keeps of each claim that pods of its node use, and the file that it is kept in.

A claim is written down before its drivers are asked to prepare it, and before they are asked to unprepare it: a kill
between any two steps leaves a record that says which call to make again.
Source: Kubernetes pkg/kubelet/cm/dra, claiminfo.go and state (behaviour).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from fairlead.node.kubelet import statefile
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim

if TYPE_CHECKING:
    from fairlead.wire.kubelet import draplugin

NAME: Final = "dra_manager_state"
VERSION: Final = 1
PREPARING: Final = "Preparing"
PREPARED: Final = "Prepared"
UNPREPARING: Final = "Unpreparing"
Phase = Literal["Preparing", "Prepared", "Unpreparing"]
PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
_EVERY: Final = "*"


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a driver prepared; fields as in `draplugin.Device`."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


class DriverRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One driver of a claim's devices."""

    driver: str
    devices: tuple[DeviceRecord, ...] = ()
    """As its last whole answer says them."""
    skips: tuple[str, ...] = ()
    """Calls that none of its devices of this claim needs."""


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One claim."""

    namespace: str
    name: str
    uid: str
    allocation: str
    """Digest of the devices that are allocated to it."""
    drivers: tuple[DriverRecord, ...]
    pods: tuple[str, ...] = ()
    """Uids of the pods that use it here."""
    phase: Phase = "Preparing"
    boot: str = ""
    """The machine's boot in which it was prepared: the next one finds no CDI files, and devices as they come up."""

    @property
    def named(self) -> draplugin.Claim:
        """The claim as drivers get it."""
        from fairlead.wire.kubelet import draplugin  # it speaks gRPC, which readers of the file do without

        return draplugin.Claim(namespace=self.namespace, name=self.name, uid=self.uid)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: the kubelet knows one claim of a name at a time."""
        return self.namespace, self.name

    def callers(self, call: str) -> tuple[str, ...]:
        """Return the drivers that are to be called. Args: call: `PREPARE` or `UNPREPARE`."""
        return tuple(one.driver for one in self.drivers if call not in one.skips)


def of_claim(claim: ResourceClaim) -> ClaimRecord:
    """Return the record of an allocated claim that no pod uses yet, its drivers by name."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    about = claim.metadata
    drivers = tuple(
        DriverRecord(driver=driver, skips=_skips([one for one in results if one.driver == driver]))
        for driver in sorted({one.driver for one in results})
    )
    allocated = sorted((one.driver, one.pool, one.device, one.share_id or "", one.request) for one in results)
    return ClaimRecord(
        namespace=about.namespace,
        name=about.name,
        uid=about.uid,
        allocation=hashlib.sha256(msgspec.json.encode(allocated)).hexdigest()[:32],
        drivers=drivers,
    )


def _skips(results: Iterable[DeviceRequestAllocationResult]) -> tuple[str, ...]:
    """Return the calls that every device of a driver can do without."""
    said = [{*one.skip_node_operations} for one in results]
    return tuple(call for call in (PREPARE, UNPREPARE) if all(call in some or _EVERY in some for some in said))


def with_devices(record: ClaimRecord, devices: dict[str, tuple[DeviceRecord, ...]], boot: str) -> ClaimRecord:
    """Return a prepared claim: what drivers answered takes the place of what they answered before."""
    drivers = tuple(
        msgspec.structs.replace(one, devices=devices.get(one.driver, one.devices)) for one in record.drivers
    )
    return msgspec.structs.replace(record, drivers=drivers, phase=PREPARED, boot=boot)


def since_boot(record: ClaimRecord, boot: str) -> ClaimRecord:
    """Return a record as it counts in a boot: what was prepared in another one is to be prepared again."""
    is_stale = record.phase == PREPARED and record.boot != boot
    return msgspec.structs.replace(record, phase=PREPARING) if is_stale else record


def matching(record: ClaimRecord, request: str) -> tuple[tuple[str, DeviceRecord], ...]:
    """Return the devices that serve a request of a claim, each with its driver.

    Args: request: as a container names it, maybe with the name of an alternative; empty: every device.
    """
    base = request.partition("/")[0]
    return tuple(
        (driver.driver, one)
        for driver in record.drivers
        for one in driver.devices
        if not base or not one.requests or base in {name.partition("/")[0] for name in one.requests}
    )


def state_file(folder: Path) -> statefile.StateFile[ClaimRecord]:
    """Return the file of a kubelet's claims."""
    return statefile.StateFile(path=folder / NAME, kind=tuple[ClaimRecord, ...], key="claims", version=VERSION)
