"""Recreates an API server's pod: the same manifest, whole, under the same name.

The manifest is taken from the server as it is, so nothing is lost that `wire` does not read. An API server has no verb
for it: between removal and creation no pod is there, and a process that is killed in that moment does not bring it
back, as with `kubectl replace --force`.
Source: Kubernetes API reference, "Pod"; kube-controller "ServiceAccount admission", kube-api-access volumes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fairlead import errors, telemetry
from fairlead.store import port
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import path
from fairlead.wire.kubernetes import core

Send = Callable[[http.Request], Awaitable[bytes]]
_SERVERS: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_PLACED: Final = ("nodeName", "priority", "preemptionPolicy", "ephemeralContainers")
"""What the scheduler, the admission of priorities and `kubectl debug` added."""
_TOKEN: Final = "kube-api-access-"  # noqa: S105 the beginning of a volume's name
_AGAIN_S: Final = 1.0
_INSISTS_S: Final = 60.0


class Replacement:
    """Recreates pods."""

    def __init__(self, store: port.Store, send: Send) -> None:
        """Take the store over the server, and what sends requests."""
        self._store, self._send = store, send

    async def recreate(self, pod: core.Pod, *, grace_s: int | None) -> bytes:
        """Return the new pod, as the server says it.

        Raises: Conflict (`PodOwned`): what made it makes the next one too; NotFound; Invalid and Denied: the server
                would not take it, and the old pod is as it was.
        """
        about = pod.metadata
        where = path.named(core.Pod, about.namespace, about.name)
        found = json.loads(await self._send(http.Request(method="GET", path=where)))
        if found["metadata"].get("uid") != about.uid:
            raise errors.NotFound(f'pod "{about.name}" is another one by now', reason="NotFound")
        refuse_owned(found)
        manifest = again(found)
        await self._try(about.namespace, manifest)
        return await self._carry_out(pod, manifest, grace_s)

    async def _try(self, namespace: str, manifest: dict[str, Any]) -> None:
        """Refuse beforehand what the server would refuse; a quota that counts the old pod says nothing of the new."""
        trial = {**manifest, "metadata": {**manifest["metadata"], "name": "", "generateName": "restart-"}}
        try:
            await self._post(namespace, trial, dryRun="All")
        except errors.Denied as error:
            if "exceeded quota" not in error.message:
                raise

    async def _carry_out(self, pod: core.Pod, manifest: dict[str, Any], grace_s: int | None) -> bytes:
        about = pod.metadata
        wait_s = None if grace_s is None else max(1, grace_s)
        await self._store.delete(core.Pod, about.name, about.namespace, grace_s=wait_s, uid=about.uid)
        await self._gone(pod)
        telemetry.crash_point("restart.after-removal")
        until = asyncio.get_running_loop().time() + _INSISTS_S
        while True:
            try:
                return await self._post(about.namespace, manifest)
            except errors.FairleadError as error:
                is_over = asyncio.get_running_loop().time() > until
                if is_over or not isinstance(error, errors.Unavailable):
                    telemetry.log.error(
                        "restart lost its pod",
                        pod=about.name,
                        namespace=about.namespace,
                        reason=error.reason,
                        error=errors.sentence(error),
                    )
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _gone(self, pod: core.Pod) -> None:
        """Return once the server knows the pod no longer."""
        about = pod.metadata
        selector = port.Selector(namespace=about.namespace, fields={"metadata.name": about.name})
        while True:
            listing = await self._store.list(core.Pod, selector)
            if all(one.metadata.uid != about.uid for one in listing.items):
                return
            try:
                async for change in self._store.watch(core.Pod, selector, since=listing.resource_version):
                    if change.kind is port.ChangeKind.DELETED and change.object.metadata.uid == about.uid:
                        return
            except errors.Gone:
                continue

    async def _post(self, namespace: str, manifest: dict[str, Any], **query: str) -> bytes:
        where = path.collection(core.Pod, namespace)
        body = json.dumps(manifest).encode()
        request = http.Request(method="POST", path=where, query=path.query(**query), body=body, repeatable=False)
        return await self._send(request)


def refuse_owned(found: dict[str, Any]) -> None:
    """Refuse a pod that a controller keeps. Raises: Conflict (`PodOwned`)."""
    about = found["metadata"]
    for owner in about.get("ownerReferences", ()):
        if owner.get("controller"):
            message = f'pod "{about["name"]}" is made by {owner["kind"]} "{owner["name"]}", which makes the next one'
            hint = f"`kubectl rollout restart`, or `fairlead rm -f {about['name']}`"
            raise errors.Conflict(message, reason="PodOwned", hint=hint)


def again(found: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a pod as it was before a server, a scheduler and a kubelet had it. Pure."""
    about = {name: value for name, value in found["metadata"].items() if name not in _SERVERS}
    about = {name: value for name, value in about.items() if not name.startswith("deletion")}
    spec = {name: value for name, value in found["spec"].items() if name not in _PLACED}
    spec["volumes"] = [one for one in spec.get("volumes", ()) if not one["name"].startswith(_TOKEN)]
    for part in ("containers", "initContainers"):
        if part in spec:
            spec[part] = [_without_token(item) for item in spec[part]]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def _without_token(item: dict[str, Any]) -> dict[str, Any]:
    mounts = [one for one in item.get("volumeMounts", ()) if not one["name"].startswith(_TOKEN)]
    return {**item, "volumeMounts": mounts}
