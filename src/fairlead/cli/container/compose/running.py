"""Asks the service about a project's objects, makes them and takes them away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fairlead import errors
from fairlead.cli.core import plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.client.calls import item_path
from fairlead.plan.compose import gpu, mount, project
from fairlead.serve.backend.hardware import GPUListing
from fairlead.serve.v1.nodes.view import NodeList
from fairlead.serve.v1.objects.view import ObjectChange, ObjectChanges, ObjectList

Document = Mapping[str, Any]
_LARGEST: Final = 1 << 20
_MOST: Final = 100
AGAIN_S: Final = 0.2
_KINDS: Final = ("services", "resourceclaimtemplates", "configmaps")
"""What goes with a project, beside its pods and values."""
_READY: Final = "Ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a project is, and through whom it is reached."""

    client: Client
    namespace: str
    project: str

    def listed(self, kind: str) -> list[Document]:
        """Return the project's objects of a kind."""
        params = {"namespace": self.namespace, "label": [f"{project.PROJECT}={self.project}"]}
        return list(self.client.call("GET", f"/v1/objects/{kind}", ObjectList, params=params).items)

    def pods(self) -> dict[str, Document]:
        """Return the project's pods by name."""
        return {one["metadata"]["name"]: one for one in self.listed("pods")}

    def pod(self, name: str) -> Document | None:
        """Return one pod; None: there is none."""
        params = {"namespace": self.namespace, "name": name}
        found = self.client.call("GET", "/v1/objects/pods", ObjectList, params=params).items
        return found[0] if found else None

    def apply(self, documents: Sequence[Document]) -> list[ObjectChange]:
        """Bring objects to what is written, in their order. Raises: as the service refuses."""
        done = list[ObjectChange]()
        for part in _parts(documents):
            content = b'{"apiVersion":"v1","kind":"List","items":[%s]}' % b",".join(part)
            params = {"namespace": self.namespace or None}
            answer = self.client.call("POST", "/v1/apply", ObjectChanges, params=params, content=content)
            done += answer.items
            for warning in answer.warnings:
                plaintext.echo(f"warning: {warning}", err=True)
        return done

    def remove(self, kind: str, name: str) -> str:
        """Take an object away; return what became of it."""
        params = {"namespace": self.namespace or None}
        return self.client.call("DELETE", item_path(f"/v1/objects/{kind}", name), ObjectChange, params=params).action

    def remove_pods(self, names: Sequence[str], grace_s: int | None = None) -> None:
        """Remove pods, and return once they are gone. Args: grace_s: None: each one's own."""
        left = list[str]()
        for name in names:
            try:
                self.client.delete(name, self.namespace, grace_s=grace_s)
            except errors.NotFound:
                continue
            left.append(name)
        with progress.Progress() as waiting:
            while left:
                left = [name for name in left if self.pod(name) is not None]
                if left:
                    waiting.show(f"removing {', '.join(left[:4])}")
                    time.sleep(AGAIN_S)

    def remove_values(self, keep: Sequence[str] = ()) -> None:
        """Take the project's Secrets away. Args: keep: names of those that stay."""
        begin = mount.prefix(self.project)
        for one in self.client.call(
            "GET", "/v1/objects/secrets", ObjectList, params={"namespace": self.namespace}
        ).items:
            name = str(one["metadata"]["name"])
            if name.startswith(begin) and name not in keep:
                self.remove("secrets", name)

    def remove_others(self, keep: Sequence[tuple[str, str]] = ()) -> None:
        """Take the project's other objects away, volumes apart. Args: keep: kinds and names of those that stay."""
        for kind in _KINDS:
            for one in self.listed(kind):
                name = str(one["metadata"]["name"])
                if (one.get("kind"), name) not in keep:
                    self.remove(kind, name)

    def machine(self, services: Mapping[str, Mapping[str, Any]]) -> gpu.Machine:
        """Return the machine's GPUs, where the project asks for some."""
        if not gpu.asks(services):
            return gpu.Machine()
        nodes = self.client.call("GET", "/v1/nodes", NodeList).items
        listing = self.client.call("GET", "/v1/gpus", GPUListing)
        uuids = {str(one.gpu.index): str(one.gpu.uuid) for one in listing.gpus}
        total = max((int(one.allocatable.get("nvidia.com/gpu", "0")) for one in nodes), default=0)
        by_claims = not total and bool(uuids)
        return gpu.Machine(total=len(uuids) if by_claims else total, uuids=uuids, by_claims=by_claims)


def _parts(documents: Sequence[Document]) -> Iterator[list[bytes]]:
    """Yield objects in parts that one request takes."""
    part, size = list[bytes](), 0
    for one in documents:
        text = json.dumps(one).encode()
        if part and (size + len(text) > _LARGEST or len(part) >= _MOST):
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


def service_of(pod: Document) -> str:
    """Return the service that a pod is of."""
    return str(pod["metadata"].get("labels", {}).get(project.SERVICE, ""))


def number_of(pod: Document) -> int:
    """Return a pod's number among those of its service."""
    text = str(pod["metadata"].get("labels", {}).get(project.NUMBER, ""))
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def hash_of(pod: Document) -> str:
    """Return what a pod was made of."""
    return str(pod["metadata"].get("annotations", {}).get(project.HASH, ""))


def has_ended(pod: Document | None) -> bool:
    """Return whether a pod runs no more; one that is not there does not."""
    return pod is None or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def has_started(pod: Document) -> bool:
    """Return whether a pod's program has been started."""
    states = (one.get("state", {}) for one in pod.get("status", {}).get("containerStatuses", ()))
    return has_ended(pod) or any("running" in one or "terminated" in one for one in states)


def is_ready(pod: Document) -> bool:
    """Return whether a pod's check says that it is well."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one.get("type") == _READY and one.get("status") == "True" for one in conditions)


def exit_code(pod: Document | None) -> int:
    """Return the exit code of a pod that has ended; 0 where it did not, 1 where it failed without one."""
    if pod is None:
        return 0
    status = pod.get("status", {})
    for one in status.get("containerStatuses", ()):
        if (ended := one.get("state", {}).get("terminated")) is not None:
            return int(ended.get("exitCode") or 0)
    return 1 if status.get("phase") == "Failed" else 0
