"""What the Kubernetes store sends for each verb, and that it drops nothing it does not know."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
import pytest

from fairlead import errors
from fairlead.store import port
from fairlead.store.kubernetes import path
from fairlead.store.kubernetes import store as kubernetes
from fairlead.wire.kubernetes import core, meta
from tests.unit.store import virtualtime
from tests.unit.store.kubernetes import scriptedserver as scripted

TEAM = port.Selector(namespace="team")


@contextlib.asynccontextmanager
async def opened(*script: scripted.Answer) -> AsyncIterator[tuple[scripted.Server, kubernetes.KubernetesStore]]:
    async with (
        scripted.serving(*script) as server,
        kubernetes.KubernetesStore(scripted.access(server), chance=lambda: 1.0) as store,
    ):
        yield server, store


def stored(**about: Any) -> dict[str, Any]:
    """A pod with fields that our types do not know, everywhere."""
    item = scripted.pod("p", 7, labels={"keep": "1", "drop": "1"}, managedFields=[{"manager": "x"}], **about)
    item["spec"] |= {"dnsPolicy": "ClusterFirst", "tolerations": [{"key": "k", "operator": "Exists"}]}
    item["spec"]["containers"][0] |= {"image": "a:1", "livenessProbe": {"exec": {}}}
    item["status"] = {
        "phase": "Pending",
        "qosClass": "BestEffort",
        "conditions": [{"type": "A", "status": "True", "x": 1}],
    }
    return item


def seen(document: dict[str, Any]) -> core.Pod:
    return msgspec.convert(document, core.Pod)


def relabelled(item: core.Pod, **labels: str) -> core.Pod:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=labels))


def test_update_keeps_what_the_type_does_not_know_and_removes_labels() -> None:
    async def scenario() -> None:
        answer = scripted.reply(stored())
        async with opened(answer) as (server, store):
            await store.update(relabelled(seen(stored()), keep="1"))
            (put,) = server.asked("PUT")
            expected = stored()
            expected["metadata"]["labels"] = {"keep": "1"}
            assert put.body == expected
            assert put.path == "/api/v1/namespaces/team/pods/p"

    virtualtime.run(scenario())


def test_status_update_keeps_what_the_type_does_not_know_and_sends_nothing_else() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply(stored())) as (server, store):
            item = seen(stored())
            changed = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase="Running"))
            await store.update_status(relabelled(changed, other="1"))
            (put,) = server.asked("PUT")
            expected = stored()
            expected["status"]["phase"] = "Running"
            assert put.body == expected
            assert put.path == "/api/v1/namespaces/team/pods/p/status"

    virtualtime.run(scenario())


def test_writes_without_a_difference_send_nothing() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply(stored())) as (server, store):
            item = seen(stored())
            assert await store.update(item) == item
            assert await store.update_status(item) == item
            assert {call.method for call in server.calls} == {"GET"}

    virtualtime.run(scenario())


def test_a_stale_version_is_refused_before_anything_is_written() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply(stored())) as (server, store):
            stale = seen(stored() | {"metadata": {**stored()["metadata"], "resourceVersion": "6"}})
            with pytest.raises(errors.Conflict):
                await store.update(relabelled(stale, a="b"))
            assert not server.asked("PUT")

    virtualtime.run(scenario())


def test_a_write_without_a_version_is_repeated_when_somebody_comes_between() -> None:
    async def scenario() -> None:
        newer = stored() | {"metadata": {**stored()["metadata"], "resourceVersion": "8"}}
        async with opened(
            scripted.reply(stored()), scripted.refuse(409, "Conflict", "modified"), scripted.reply(newer)
        ) as (server, store):
            bare = msgspec.structs.replace(seen(stored()).metadata, resource_version="", labels={})
            await store.update(msgspec.structs.replace(seen(stored()), metadata=bare))
            assert [put.body["metadata"]["resourceVersion"] for put in server.asked("PUT")] == ["7", "8"]

    virtualtime.run(scenario())


def test_a_write_with_a_version_is_not_repeated() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply(stored()), scripted.refuse(409, "Conflict", "modified")) as (server, store):
            with pytest.raises(errors.Conflict) as refused:
                await store.update(relabelled(seen(stored()), a="b"))
            assert refused.value.reason == "StaleVersion"
            assert len(server.asked("PUT")) == 1

    virtualtime.run(scenario())


def test_a_first_node_travels_as_a_binding_of_the_very_pod() -> None:
    async def scenario() -> None:
        item = seen(stored())
        placed = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node_name="n1"))
        async with opened(scripted.reply(stored())) as (server, store):
            await store.update(placed)
            (binding,) = server.asked("POST")
            assert binding.path == "/api/v1/namespaces/team/pods/p/binding"
            assert binding.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
            assert binding.body["metadata"]["uid"] == "uid-p"
            assert binding.body["metadata"]["resourceVersion"] == "7"
            assert not server.asked("PUT")

    virtualtime.run(scenario())


def test_other_changes_of_a_pod_are_written_before_it_is_bound() -> None:
    async def scenario() -> None:
        item = relabelled(seen(stored()), a="b")
        placed = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node_name="n1"))
        async with opened(scripted.reply(stored())) as (server, store):
            await store.update(placed)
            assert [call.method for call in server.calls] == ["GET", "PUT", "POST", "GET"]
            assert "nodeName" not in server.asked("PUT")[0].body["spec"]

    virtualtime.run(scenario())


def test_a_pod_that_was_bound_meanwhile_is_a_conflict() -> None:
    async def scenario() -> None:
        taken = scripted.refuse(409, "Conflict", "Operation cannot be fulfilled: pod p is already assigned to node n2")
        item = seen(stored())
        placed = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node_name="n1"))
        async with opened(scripted.reply(stored()), taken) as (_, store):
            with pytest.raises(errors.Conflict) as refused:
                await store.update(placed)
            assert refused.value.reason == "AlreadyBound"

    virtualtime.run(scenario())


def test_lists_come_in_pages_and_are_ordered_as_the_port_says() -> None:
    async def scenario() -> None:
        first = [scripted.pod(name, 1, namespace="a-b") for name in ("x", "y")]
        second = [scripted.pod(name, 1, namespace="a") for name in ("x", "z")]
        async with opened(scripted.page(9, *first, following="t"), scripted.page(9, *second)) as (server, store):
            listing = await store.list(core.Pod)
            names = [(item.metadata.namespace, item.metadata.name) for item in listing.items]
            assert names == [("a", "x"), ("a", "z"), ("a-b", "x"), ("a-b", "y")]
            assert listing.resource_version == "9"
            assert [call.query.get("limit") for call in server.calls] == ["500", "500"]

    virtualtime.run(scenario())


def test_a_list_that_history_overtakes_is_begun_anew() -> None:
    async def scenario() -> None:
        begun = scripted.page(9, scripted.pod("old", 1), following="t")
        expired = scripted.refuse(410, "Expired")
        whole = scripted.page(12, scripted.pod("new", 11))
        async with opened(begun, expired, begun, expired, whole) as (server, store):
            listing = await store.list(core.Pod, TEAM)
            assert [item.metadata.name for item in listing.items] == ["new"]
            assert listing.resource_version == "12"
            assert "limit" not in server.calls[-1].query

    virtualtime.run(scenario())


def test_answers_that_do_not_fit_the_type_are_the_writers_error() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply({"metadata": {"name": 7}, "items": [{"spec": 3}]})) as (_, store):
            with pytest.raises(errors.ProtocolError):
                await store.get(core.Pod, "p", "team")
            with pytest.raises(errors.ProtocolError):
                await store.list(core.Pod)

    virtualtime.run(scenario())


def test_apply_sends_what_the_manager_gives_and_nothing_of_the_servers() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply(stored())) as (server, store):
            await store.apply(seen(stored(creationTimestamp="2026-01-01T00:00:00Z", generation=3)), manager="me")
            (patch,) = server.asked("PATCH")
            assert patch.headers["Content-Type"] == "application/apply-patch+yaml"
            assert patch.query == {"fieldManager": "me", "force": "true"}
            about = patch.body["metadata"]
            assert set(about) == {"name", "namespace", "uid", "resourceVersion", "labels"}
            assert "status" not in patch.body

    virtualtime.run(scenario())


def test_delete_says_how_and_whom() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply({})) as (server, store):
            await store.delete(core.Pod, "p", "team", grace_s=0, uid="u")
            await store.delete(core.Node, "n")
            first, second = server.calls
            assert first.body["gracePeriodSeconds"] == 0
            assert first.body["preconditions"] == {"uid": "u"}
            assert second.path == "/api/v1/nodes/n"
            assert set(second.body) == {"apiVersion", "kind", "propagationPolicy"}

    virtualtime.run(scenario())


def test_names_never_become_paths() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply({})) as (server, store):
            for name in ("", "..", ".", "a/../b", "a%2fb"):
                with pytest.raises(errors.NotFound):
                    await store.delete(core.Pod, name, "team")
                if name:
                    with pytest.raises(errors.NotFound):
                        await store.get(core.Pod, "p", name)
            with pytest.raises(errors.Invalid):
                await store.list(core.Pod, port.Selector(namespace=""))
            assert not server.calls

    virtualtime.run(scenario())


class Custom(meta.Wire, frozen=True):
    API_VERSION: ClassVar[str] = "fairlead.dev/v1alpha1"
    KIND: ClassVar[str] = "Queue"
    PLURAL: ClassVar[str] = "queues"
    NAMESPACED: ClassVar[bool] = False

    metadata: meta.ObjectMeta = meta.ObjectMeta()


def test_paths_follow_group_and_scope() -> None:
    assert path.collection(Custom, None) == "/apis/fairlead.dev/v1alpha1/queues"
    assert path.named(Custom, "", "q?x", "status") == "/apis/fairlead.dev/v1alpha1/queues/q%3Fx/status"
    assert path.collection(core.Pod, None) == "/api/v1/pods"


def test_a_kind_without_status_is_told_so() -> None:
    async def scenario() -> None:
        async with opened(scripted.reply({})) as (server, store):
            with pytest.raises(errors.Invalid):
                await store.update_status(core.Namespace(metadata=meta.ObjectMeta(name="x")))
            assert not server.calls

    virtualtime.run(scenario())
