"""Hands a node's labels to node feature discovery, in place of setting them: a NodeFeature object, or a file.

NFD's master sets them on the Node then, by its own rules about names. Writing what is there already writes nothing.
Source: node-feature-discovery, docs "Customization guide" (feature files, one NAME=VALUE a line; NodeFeature objects).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from fairlead import errors, files
from fairlead.plan.gpu import label
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.node import nodefeature


class Features(Protocol):
    """Where labels go that the agent does not set itself."""

    async def write(self, labels: Mapping[str, str], node: core.Node, /) -> None:
        """Have these and no others of ours reach the node. Raises: Unavailable, Denied: they cannot be written."""
        ...


class FeatureObject:
    """A NodeFeature of the agent's namespace, which goes with its Node."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace

    async def write(self, labels: Mapping[str, str], node: core.Node, /) -> None:
        """See `Features`."""
        name = node.metadata.name
        owner = meta.OwnerReference(api_version=node.API_VERSION, kind=node.KIND, name=name, uid=node.metadata.uid)
        about = meta.ObjectMeta(
            name=nodefeature.object_name(name),
            namespace=self._namespace,
            labels={nodefeature.NODE_LABEL: name},
            owner_references=(owner,),
        )
        wanted = nodefeature.NodeFeature(metadata=about, spec=nodefeature.NodeFeatureSpec(labels=labels))
        try:
            await self._store.apply(wanted, manager=label.MANAGER)
        except errors.NotFound as error:
            message = f"no NodeFeature can be written: {error.message}"
            hint = "install node feature discovery, or leave labels.way at node"
            raise errors.Unavailable(message, reason="NodeFeatureUnknown", hint=hint) from error


class FeatureFile:
    """One file of NFD's features.d."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    async def write(self, labels: Mapping[str, str], _: core.Node, /) -> None:
        """See `Features`."""
        text = "".join(f"{name}={value}\n" for name, value in sorted(labels.items()))
        await asyncio.to_thread(self._replace, text.encode())

    def _replace(self, data: bytes) -> None:
        if not self._path.parent.is_dir():
            message = f"the folder of {self._path} is not there"
            hint = "mount NFD's features.d there, or set FAIRLEAD_LABELS_FILE"
            raise errors.Unavailable(message, reason="FeatureFolderMissing", hint=hint)
        files.write_atomic(self._path, data, mode=0o644, durable=False)
