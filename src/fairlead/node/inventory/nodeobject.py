"""Follows this node's Node object: its labels, and the container engine that its kubelet names.

The agent's core decides by both: a label chooses the configuration, and nothing is allocated while the engine is not
known. So this is a part of the core. A store that does not answer is asked again for ever, and no other part waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.node.inventory import latest
from fairlead.store import reflector
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core


class NodeObject:
    """Holds what the store has of one Node."""

    def __init__(self, name: str, store: Store) -> None:
        """Take whose it is and where; nothing is read before `run`."""
        self.name = name
        self._store = store
        self.node: latest.Latest[core.Node | None] = latest.Latest(None)
        """The Node as it is; None: not known yet, or gone."""
        self.labels: latest.Latest[Mapping[str, str] | None] = latest.Latest(None)
        """As they were last; None: not known yet."""
        self.runtime: latest.Latest[str] = latest.Latest("")
        """The node's container engine in its kubelet's words, `containerd://2.2.1`; empty: not known."""

    async def run(self) -> None:
        """Follow it for ever."""
        selector = Selector(fields={"metadata.name": self.name})
        await reflector.follow(self._store, core.Node, selector, listed=self._listed, changed=self._changed)

    def _listed(self, nodes: tuple[core.Node, ...]) -> None:
        self._take(nodes[0] if nodes else None)

    def _changed(self, change: Change[core.Node]) -> None:
        self._take(None if change.kind is ChangeKind.DELETED else change.object)

    def _take(self, node: core.Node | None) -> None:
        self.node.set(node)
        if node is not None:
            self.labels.set(dict(node.metadata.labels))
        if node is not None and node.status.node_info is not None:
            self.runtime.set(node.status.node_info.container_runtime_version)
