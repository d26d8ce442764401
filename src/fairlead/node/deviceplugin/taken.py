"""Knows which devices containers have, so that a kubelet that lost count is led to those that are free.

When PodResources List is called, by whichever process, the kubelet computes anew which devices are in use. The devices
of an Allocate that runs at that moment are not counted, and are offered to the next container. GetPreferredAllocation
then answers with devices that no living pod has: as many are free as were to be offered, or the pod would not have been
bound here, so the kubelet's count comes right and no pod fails. This module never calls List itself.

Source: kubernetes pkg/kubelet/cm/devicemanager/manager.go (UpdateAllocatedDevices, which every List calls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import pods

LISTED_S: Final = 2.0
"""After this the list that we follow has what an Allocate gave, or the pod has ended."""


class Taken:
    """What containers of a real kubelet have, as far as is known without asking."""

    def __init__(self, holdings: podresources.Holdings, known: pods.Pods, *, clock: Callable[[], float]) -> None:
        """Take the kubelet's list and this node's pods. Args: clock: monotonic, in seconds."""
        self._holdings, self._pods, self._clock = holdings, known, clock
        self._given: dict[tuple[str, DeviceID], float] = {}

    def give(self, resource: str, ids: Iterable[DeviceID]) -> None:
        """Note what an Allocate gave; it counts for `LISTED_S`."""
        now = self._clock()
        self._given = {key: at for key, at in self._given.items() if now - at < LISTED_S}
        self._given |= {(resource, item): now for item in ids}

    def find(self, resource: str) -> frozenset[DeviceID]:
        """Return the devices that were given just now, and those that the newest list has for a pod that lives.

        Pods that no kubelet has taken in do not count: one may be asking now, and a StatefulSet reuses names.
        """
        now = self._clock()
        given = {item for (of, item), at in self._given.items() if of == resource and now - at < LISTED_S}
        alive = self._pods.living(begun=True)
        listed = (one for one in self._holdings.latest.value or () if (one.namespace, one.pod) in alive)
        return frozenset(given.union(*(one.ids for one in listed if one.resource == resource)))
