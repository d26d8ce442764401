"""Keeps back devices whose GPU the kubelet's list shows under another resource's name.

The rules are `plan.gpu.clash`'s. This part holds the clashes that stand, between one list of the kubelet and the next,
and says of each device why it is kept back. Until a kubelet that is there has answered once, every device is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead import telemetry
from fairlead.model import replica
from fairlead.model.device import Device
from fairlead.model.gpu import GPU
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import pods
from fairlead.plan.gpu import clash, deviceids
from fairlead.plan.gpu.offer import advertise
from fairlead.wire.kubernetes import core

_SILENT = "the kubelet has not said yet which container holds what; its socket is {path}"


class OtherHolders:
    """The clashes that stand."""

    def __init__(self, holdings: podresources.Holdings, pods: pods.Pods | None) -> None:
        """Take the kubelet's list and, where there is a store, this node's pods."""
        self._holdings, self._pods = holdings, pods
        self._clashes: Mapping[clash.Key, clash.Clash] = {}
        self._is_silent = False

    def judge(self, offered: Iterable[advertise.Advertisement], gpus: Iterable[GPU]) -> tuple[clash.Clash, ...] | None:
        """Look at the newest list; returns what stands now if that is something else than before, else None.

        Args:    offered: everything this node may offer.   gpus: every GPU that was read so far.
        """
        self._is_silent = self._holdings.is_awaited
        listed, seen = self._holdings.latest.value or (), None
        if self._pods is not None and self._pods.is_listed:
            seen = self._pods.all()
            listed = clash.without_ended(listed, seen)
        found = clash.find_clashes(offered, listed, deviceids.make_table(gpus), seen or ())
        before, self._clashes = self._clashes, clash.plan_kept(found, self._clashes, seen)
        if before == self._clashes:
            return None
        standing = tuple(self._clashes.values())
        for device, message in {(replica.origin(one.device), one.message): None for one in standing}:
            telemetry.log.warning("gpu held by another resource", device=device, reason=clash.REASON, error=message)
        return standing

    def problem(self, resource: str, device: Device) -> tuple[str, str] | None:
        """Return reason and message why a device is kept back, None where it is not."""
        if self._is_silent:
            return clash.UNKNOWN, _SILENT.format(path=self._holdings.socket)
        found = self._clashes.get((resource, device.id))
        return (clash.REASON, found.message) if found is not None else None

    def silence(self) -> str:
        """Return why it is not known who holds what, "" where it is."""
        path = self._holdings.socket
        if self._holdings.latest.value is not None:
            return ""
        if self._holdings.is_absent.value:
            return f"no kubelet says who holds what: there is no socket {path}"
        return _SILENT.format(path=path)

    def concerns(self, pod: core.Pod) -> bool:
        """Return whether a clash that stands is this pod's."""
        name = (pod.metadata.namespace, pod.metadata.name)
        return any((one.holding.namespace, one.holding.pod) == name for one in self._clashes.values())
