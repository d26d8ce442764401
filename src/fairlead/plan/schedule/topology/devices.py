"""Keeps what agents say of the GPUs of their nodes, and says what the pods of a node leave free of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fairlead.plan.schedule.topology import offers
from fairlead.wire.kubernetes.gpudevice import GPUDevice


class Taker(Protocol):
    """What a pod takes of its node."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Return amounts by resource."""


class Devices:
    """GPUs by node."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[str, dict[str, offers.Known]] = {}
        """By node and name: what its agent says of its GPUs."""
        self._prepared: dict[str, offers.Prepared] = {}
        """By node: the same, as far as its pods do not change it."""

    def forget(self) -> tuple[str, ...]:
        """Reset: a list follows. Returns the nodes that had any."""
        found = tuple(self._known)
        self._known.clear()
        self._prepared.clear()
        return found

    def note(self, device: GPUDevice, *, is_gone: bool = False) -> str:
        """Take in what the watch says of a GPU; returns the node for which that is news, "" where it is none."""
        node, name = device.spec.node_name, device.metadata.name
        found = None if is_gone else offers.known(device)
        there = self._known.setdefault(node, {})
        if there.get(name) == found:
            return ""
        there.pop(name, None)
        self._prepared.pop(node, None)
        if found is not None:
            there[name] = found
        elif not there:
            del self._known[node]
        return node

    def free(
        self, node: str, needs: Mapping[str, Taker], full_name: Callable[[str], str]
    ) -> Mapping[str, offers.Offer]:
        """Return by resource what pods leave free. Args: needs: by uid.   full_name: gives a pod's by its uid."""
        devices = self._known.get(node)
        if not devices:
            return {}
        if node not in self._prepared:
            self._prepared[node] = offers.prepare(devices.values())
        return offers.offers(self._prepared[node], {uid: need.requests for uid, need in needs.items()}, full_name)
