"""Knows which devices containers have, so that a kubelet that lost count is led to those that are free.

When PodResources List is called, by whichever process, the kubelet computes anew which devices are in use. The devices
of an Allocate that runs at that moment are not counted, and are offered to the next container. GetPreferredAllocation
then answers with devices that no living pod has: as many are free as were to be offered, or the pod would not have been
bound here, so the kubelet's count comes right and no pod fails. This module never calls List itself.

A kubelet whose checkpoint was lost lists none of what running pods have, and offers all of it. So a list without a pod
frees nothing while that pod lives, and what the ledger has as held counts beside it. Such devices stay healthy: a
scheduler takes the requests of running pods from the healthy ones, and would count them twice.

Source: kubernetes pkg/kubelet/cm/devicemanager/manager.go (UpdateAllocatedDevices, which every List calls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import pods
from fairlead.plan.gpu.attribution import Holding

LISTED_S: Final = 2.0
"""After this the list that we follow has what an Allocate gave, or the pod has ended."""


class Taken:
    """What containers of a real kubelet have, as far as is known without asking."""

    def __init__(self, holdings: podresources.Holdings, known: pods.Pods, *, clock: Callable[[], float]) -> None:
        """Take the kubelet's list and this node's pods. Args: clock: monotonic, in seconds."""
        self._holdings, self._pods, self._clock = holdings, known, clock
        self._given: dict[tuple[str, DeviceID], float] = {}
        self._held: Mapping[tuple[str, str], frozenset[tuple[str, DeviceID]]] = {}
        """Resource and id of what each pod had in the newest list that named it."""
        self.of_ledger: Callable[[str], Iterable[DeviceID]] = lambda _: ()
        """Gives the devices of a resource that the ledger has as held by pods that live."""

    def note(self, listed: Iterable[Holding] | None) -> None:
        """Take in what the kubelet lists now; what it lists of a pod no more is remembered while the pod lives."""
        found: dict[tuple[str, str], frozenset[tuple[str, DeviceID]]] = {}
        for one in listed or ():
            about = (one.namespace, one.pod)
            found[about] = found.get(about, frozenset()) | {(one.resource, item) for item in one.ids}
        alive = self._pods.living(begun=True)
        self._held = {about: ids for about, ids in {**self._held, **found}.items() if about in found or about in alive}

    def give(self, resource: str, ids: Iterable[DeviceID]) -> None:
        """Note what an Allocate gave; it counts for `LISTED_S`."""
        now = self._clock()
        self._given = {key: at for key, at in self._given.items() if now - at < LISTED_S}
        self._given |= {(resource, item): now for item in ids}

    def find(self, resource: str) -> frozenset[DeviceID]:
        """Return the devices that were given just now, and those that a pod that lives had when it was last listed.

        Pods that no kubelet has taken in do not count: one may be asking now, and a StatefulSet reuses names.
        """
        now = self._clock()
        given = {item for (of, item), at in self._given.items() if of == resource and now - at < LISTED_S}
        self.note(self._holdings.latest.value)
        alive = self._pods.living(begun=True)
        held = (ids for about, ids in self._held.items() if about in alive)
        listed = {item for ids in held for of, item in ids if of == resource}
        return frozenset(given | listed | set(self.of_ledger(resource)))
