"""A pod of an API server made anew: its whole manifest, refused beforehand or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import errors
from fairlead.store.embedded import memory
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes.replacement import Replacement, again
from fairlead.wire.kubernetes import core, meta

_TOKEN = {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
_FOUND: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train",
        "namespace": "team",
        "uid": "u-1",
        "resourceVersion": "9",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b"},
        "managedFields": [],
    },
    "spec": {
        "nodeName": "n1",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "runtimeClassName": "kata",
        "containers": [{"name": "main", "image": "demo", "unheard": {"of": 1}, "volumeMounts": [_TOKEN]}],
        "volumes": [{"name": "kube-api-access-x", "projected": {}}, {"name": "data", "emptyDir": {}}],
    },
    "status": {"phase": "Running"},
}
_AGAIN = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "team", "labels": {"a": "b"}},
    "spec": {
        "runtimeClassName": "kata",
        "containers": [{"name": "main", "image": "demo", "unheard": {"of": 1}, "volumeMounts": []}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    },
}


class Server:
    """An API server of one pod, over a store that knows what is there."""

    def __init__(self) -> None:
        self.store = memory.MemoryStore()
        self.found = dict(_FOUND)
        self.refusals: list[errors.FairleadError] = []
        self.trials: list[dict[str, Any]] = []
        self.made: list[dict[str, Any]] = []

    async def send(self, request: http.Request) -> bytes:
        if request.method == "GET":
            return json.dumps(self.found).encode()
        if "dryRun" in request.query:
            self.trials.append(json.loads(request.body or b""))
            if self.refusals:
                raise self.refusals.pop()
            return b"{}"
        assert (await self.store.list(core.Pod)).items == ()
        self.made.append(json.loads(request.body or b""))
        return b"made"

    async def pod(self) -> core.Pod:
        about = meta.ObjectMeta(name="train", namespace="team")
        made = await self.store.create(core.Pod(metadata=about))
        self.found = {**self.found, "metadata": {**self.found["metadata"], "uid": made.metadata.uid}}
        return made


def test_nothing_of_a_manifest_is_lost_but_what_others_wrote_into_it() -> None:
    assert again(_FOUND) == _AGAIN


async def test_it_is_tried_removed_and_made_in_this_order() -> None:
    server = Server()
    pod = await server.pod()
    assert await Replacement(server.store, server.send).recreate(pod, grace_s=0) == b"made"
    assert server.made == [_AGAIN]
    assert [one["metadata"].get("generateName") for one in server.trials] == ["restart-"]


async def test_a_quota_that_still_counts_the_old_pod_is_no_refusal() -> None:
    server = Server()
    pod = await server.pod()
    server.refusals = [errors.Denied("pods is forbidden: exceeded quota: few", reason="Forbidden")]
    assert await Replacement(server.store, server.send).recreate(pod, grace_s=None) == b"made"


@pytest.mark.parametrize("error", [errors.Invalid("no", reason="Invalid"), errors.Denied("policy", reason="Forbidden")])
async def test_what_would_be_refused_stays(error: errors.FairleadError) -> None:
    server = Server()
    pod = await server.pod()
    server.refusals = [error]
    with pytest.raises(type(error)):
        await Replacement(server.store, server.send).recreate(pod, grace_s=None)
    assert (len((await server.store.list(core.Pod)).items), server.made) == (1, [])


async def test_a_controllers_pod_is_left_to_it() -> None:
    server = Server()
    pod = await server.pod()
    owner = {"kind": "ReplicaSet", "name": "web-1", "controller": True}
    server.found["metadata"]["ownerReferences"] = [owner]
    with pytest.raises(errors.Conflict, match='made by ReplicaSet "web-1"') as refused:
        await Replacement(server.store, server.send).recreate(pod, grace_s=None)
    assert (refused.value.reason, server.trials) == ("PodOwned", [])


async def test_another_pod_of_the_name_is_not_touched() -> None:
    server = Server()
    await server.pod()
    old = core.Pod(metadata=meta.ObjectMeta(name="train", namespace="team", uid="before"))
    with pytest.raises(errors.NotFound):
        await Replacement(server.store, server.send).recreate(old, grace_s=None)
    assert len((await server.store.list(core.Pod)).items) == 1
