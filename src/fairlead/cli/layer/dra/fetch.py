"""Fetches objects of resource.k8s.io, and pods and nodes beside them, from a cluster: each in its newest version."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from fairlead import errors, telemetry
from fairlead.cli.core import cluster
from fairlead.cli.layer.dra.read import Kinds, Objects, Seen
from fairlead.store.kubernetes import client, credentials, document, store
from fairlead.wire.kubernetes import manifest, meta
from fairlead.wire.kubernetes.resource import dialect


def objects(access: credentials.Access, kinds: Kinds) -> Objects:
    """Return the objects of a cluster. Raises: Denied, Unavailable, ProtocolError: of kinds that are needed."""
    telemetry.configure("error", "console")  # what fails is raised to the person, once
    return asyncio.run(_objects(access, kinds))


async def _objects(access: credentials.Access, kinds: Kinds) -> Objects:
    async with store.KubernetesStore(access, limits=client.Limits(patience_s=cluster.PATIENCE_S)) as opened:
        one = opened.client
        served = await document.served(one, dialect.GROUP)
        if not served:
            message = f"the cluster at {access.cluster.server} does not serve {dialect.GROUP}"
            raise errors.NotFound(message, reason="GroupNotServed", hint="it takes Kubernetes 1.32 or newer")
        seen = Seen(access.cluster.server)
        for kind in (*kinds.needed, *kinds.beside):
            try:
                for found, version in await _list(one, kind, served):
                    seen.add(found, "", functools.partial(_read, kind=kind, version=version))
            except errors.NotFound:  # a cluster that does not serve a kind has no object of it
                if kind in kinds.needed:
                    raise
            except errors.Denied as error:
                if kind in kinds.needed:
                    raise
                seen.miss(kind, error)
        return seen.objects()


async def _list(
    one: client.Client, kind: type[meta.Object], served: tuple[str, ...]
) -> list[tuple[dict[str, Any], str]]:
    """Return the objects of a kind with the version that they came in. Raises: NotFound: no version has the kind."""
    if kind.API_VERSION.partition("/")[0] != dialect.GROUP:
        return [(found, kind.API_VERSION) for found in await document.documents(one, kind, kind.API_VERSION)]
    left = set(served)
    while (version := dialect.newest(left, kind)) is not None:
        try:
            return [(found, version) for found in await document.documents(one, kind, version)]
        except errors.NotFound:
            left.remove(version)
    message = f"{kind.KIND} is not served (served: {', '.join(served)})"
    raise errors.NotFound(message, reason="KindNotServed", hint="a feature gate of the API server may be off")


def _read(found: dict[str, Any], *, kind: type[meta.Object], version: str) -> manifest.Manifest:
    if version.partition("/")[0] == dialect.GROUP:
        return dialect.read(found, version=version, kind=kind.KIND)
    return manifest.convert({**found, "apiVersion": version, "kind": kind.KIND}, (kind,))
