"""Fetches objects of resource.k8s.io, and pods and nodes beside them, from a cluster: each in its newest version."""

from __future__ import annotations

import asyncio
import contextlib
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
        own = access.namespace if kinds.of_one_namespace else ""
        for kind in (*kinds.needed, *kinds.beside):
            try:
                for found, version in await _permitted(one, kind, served, own, seen):
                    seen.add(found, "", functools.partial(_read, kind=kind, version=version))
            except errors.NotFound:  # a cluster that does not serve a kind has no object of it
                if kind in kinds.needed:
                    raise
            except errors.Denied as error:
                if kind in kinds.needed:
                    raise
                seen.miss(kind, error)
        return seen.objects()


_Found = list[tuple[dict[str, Any], str]]
"""Objects, each with the version that it came in."""


async def _permitted(
    one: client.Client, kind: type[meta.Object], served: tuple[str, ...], own: str, seen: Seen
) -> _Found:
    """Return the objects of a kind; those of one namespace, which is said, where all may not be read.

    Args:    own: that namespace; empty: none will do.
    Raises:  NotFound: no version has the kind; Denied: why all may not be read.
    """
    try:
        return await _list(one, kind, served)
    except errors.Denied as error:
        if not own or not kind.NAMESPACED:
            raise
        with contextlib.suppress(errors.Denied, errors.NotFound):
            found = await _list(one, kind, served, namespace=own)
            seen.miss_others(kind, own, error)
            return found
        raise


async def _list(one: client.Client, kind: type[meta.Object], served: tuple[str, ...], *, namespace: str = "") -> _Found:
    """Return the objects of a kind. Raises: NotFound: no version has the kind."""
    read = functools.partial(document.documents, one, kind, namespace=namespace)
    if kind.API_VERSION.partition("/")[0] != dialect.GROUP:
        return [(found, kind.API_VERSION) for found in await read(kind.API_VERSION)]
    left = set(served)
    while (version := dialect.newest(left, kind)) is not None:
        try:
            return [(found, version) for found in await read(version)]
        except errors.NotFound:
            left.remove(version)
    message = f"{kind.KIND} is not served (served: {', '.join(served)})"
    raise errors.NotFound(message, reason="KindNotServed", hint="a feature gate of the API server may be off")


def _read(found: dict[str, Any], *, kind: type[meta.Object], version: str) -> manifest.Manifest:
    if version.partition("/")[0] == dialect.GROUP:
        return dialect.read(found, version=version, kind=kind.KIND)
    return manifest.convert({**found, "apiVersion": version, "kind": kind.KIND}, (kind,))
