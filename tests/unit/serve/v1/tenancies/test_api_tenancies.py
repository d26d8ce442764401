"""Tenancies over the API: containers are accepted by a tenancy that is ready, and by no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import errors
from fairlead.plan.sandbox import choice
from fairlead.plan.tenancy import baseline, matrix
from fairlead.plan.tenancy.matrix import Attempt, Matrix
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.v1.dependencies import Services
from fairlead.store.port import Selector
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.world import World, application, in_process


class Trial:
    """`serve.backend.port.TenancyTrial` that found one breach, on one machine."""

    def judge(self, item: Tenancy) -> None:
        choice.refuse_machines(item.spec.isolation)

    async def test(self, item: Tenancy, every: Sequence[Tenancy], *, image: str = "") -> Matrix:
        assert item.metadata.uid in {one.metadata.uid for one in every}
        one = Attempt(source="alpha", target="beta", family="IPv6", expected=False, reached=True)
        return matrix.judge(item.metadata.name, (one,))


@pytest.fixture
def services(world: World) -> Services:
    return replace(world.services, backend=replace(world.services.backend, tenancies=Trial()))


@pytest.fixture
async def door(services: Services) -> Any:
    transport = in_process(application(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def _stand(world: World, name: str = "alpha") -> str:
    """Be the controller: make the namespace and call every part good; return the namespace."""
    item = await world.store.get(Tenancy, name)
    names = (kind.NAMESPACE_READY, kind.NETWORK_ISOLATED, kind.QUOTA_APPLIED)
    found = {one: baseline.condition(item, one, None, good="Good") for one in names}
    status = baseline.status(item, found, kind.NetworkStatus())
    await world.store.apply(baseline.namespace(item), manager="test")
    await world.store.update_status(msgspec.structs.replace(item, status=status))
    return baseline.namespace_name(item)


RUN = {"image": "demo", "tenancy": "alpha", "name": "train"}


async def test_containers_are_accepted_once_the_tenancy_is_ready(door: httpx.AsyncClient, world: World) -> None:
    made = await door.post("/v1/tenancies", json={"name": "alpha"})
    assert made.status_code == 201, made.text
    namespace = made.json()["namespace"]
    assert made.json()["phase"] == "Pending"
    await world.store.create(baseline.namespace(await world.store.get(Tenancy, "alpha")))

    early = await door.post("/v1/containers", json=RUN)
    assert (early.status_code, early.json()["reason"]) == (503, "TenancyNotReady")
    assert await _stand(world) == namespace
    accepted = await door.post("/v1/containers", json=RUN)
    assert accepted.status_code == 201, accepted.text
    assert accepted.json()["namespace"] == namespace


async def test_a_tenancy_is_shown_as_it_was_asked_for_and_as_it_stands(door: httpx.AsyncClient, world: World) -> None:
    asked = {"name": "alpha", "display_name": "A", "quota": {"pods": "3"}, "dns": False, "egress": ["10.1.0.0/16"]}
    assert (await door.post("/v1/tenancies", json=asked)).status_code == 201
    await _stand(world)
    shown = (await door.get("/v1/tenancies/alpha")).json()
    assert {key: shown[key] for key in asked} == asked
    assert (shown["internet"], shown["publish"], shown["suspended"], shown["phase"]) == ("allow", True, False, "Ready")
    times = [shown["created_at"], *(one["since"] for one in shown["conditions"])]
    assert len(times) == 5
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", str(one)) for one in times), times


async def test_limits_are_changed_one_by_one_and_what_runs_goes_on(door: httpx.AsyncClient, world: World) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha", "quota": {"pods": "3", "memory": "8Gi"}, "dns": False})
    await _stand(world)
    change = {"quota": {"pods": "1", "memory": None, "cpu": "4"}}
    tried = await door.patch("/v1/tenancies/alpha", json=change, params={"dry_run": "true"})
    assert tried.json()["quota"] == {"pods": "1", "cpu": "4"}
    assert (await door.get("/v1/tenancies/alpha")).json()["quota"] == {"pods": "3", "memory": "8Gi"}
    changed = await door.patch("/v1/tenancies/alpha", json=change)
    assert changed.status_code == 200, changed.text
    assert changed.json()["quota"] == {"pods": "1", "cpu": "4"}
    named = (await door.patch("/v1/tenancies/alpha", json={"display_name": "Team"})).json()
    assert (named["display_name"], named["quota"], named["dns"]) == ("Team", {"pods": "1", "cpu": "4"}, False)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"quota": {"pods": "many"}}, 422, "many"),
        ({"quota": {"pods": "-1"}}, 422, "-1"),
        ({"display_name": "a\u0000b"}, 422, "printable"),
        ({"mode": "none"}, 400, "mode"),
        ({"quota": {"pods": 3}}, 400, "quota"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_whole(
    door: httpx.AsyncClient, change: dict[str, Any], status: int, says: str
) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha", "quota": {"pods": "3"}})
    refused = await door.patch("/v1/tenancies/alpha", json=change)
    assert (refused.status_code, says in refused.text) == (status, True), refused.text
    assert (await door.get("/v1/tenancies/alpha")).json()["quota"] == {"pods": "3"}


async def test_a_change_of_what_was_changed_meanwhile_or_ends_is_refused(door: httpx.AsyncClient) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha", "quota": {"pods": "3"}})
    tag = (await door.get("/v1/tenancies/alpha")).headers["etag"]
    await door.patch("/v1/tenancies/alpha", json={"quota": {"pods": "4"}})
    late = await door.patch("/v1/tenancies/alpha", json={"quota": {"pods": "5"}}, headers={"if-match": tag})
    assert late.status_code == 412, late.text
    await door.delete("/v1/tenancies/alpha")
    gone = await door.patch("/v1/tenancies/alpha", json={"quota": {"pods": "5"}})
    assert (gone.status_code, gone.json()["reason"]) == (409, "TenancyTerminating")


async def test_the_articles_payload_is_valid_as_it_is_and_never_without_isolation(
    door: httpx.AsyncClient, world: World
) -> None:
    payload = {"container-url": "demo", "tenancy": "landon"}
    refused = await door.post("/v1/containers", json=payload)
    assert (refused.status_code, refused.json()["reason"]) == (404, "TenancyUnknown")
    assert "`fairlead tenancy create landon`" in refused.text
    assert "landon" not in {one.metadata.name for one in (await world.store.list(core.Namespace)).items}
    await door.post("/v1/tenancies", json={"name": "landon"})
    namespace = await _stand(world, "landon")
    accepted = await door.post("/v1/containers", json=payload)
    assert (accepted.status_code, accepted.json()["namespace"]) == (201, namespace)


async def test_what_tenants_may_not_ask_for_is_refused_there(door: httpx.AsyncClient, world: World) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha"})
    await _stand(world)
    for more in ({"network": "host"}, {"binds": [{"host_path": "/", "container_path": "/x"}]}):
        refused = await door.post("/v1/containers", json={**RUN, **more})
        assert (refused.status_code, refused.json()["reason"]) == (403, "TenantPodForbidden"), more


async def test_a_suspended_and_a_dying_tenancy_accept_nothing(door: httpx.AsyncClient, world: World) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha"})
    await _stand(world)
    assert (await door.post("/v1/tenancies/alpha/:suspend")).status_code == 202
    await _stand(world)
    refused = await door.post("/v1/containers", json=RUN)
    assert (refused.status_code, refused.json()["reason"]) == (403, "TenancySuspended")
    await door.post("/v1/tenancies/alpha/:resume")
    await door.delete("/v1/tenancies/alpha")
    refused = await door.post("/v1/containers", json=RUN)
    assert (refused.status_code, refused.json()["reason"]) == (403, "TenancyTerminating")
    again = await door.post("/v1/tenancies", json={"name": "alpha"})
    assert again.status_code == 409
    assert "still being deleted" in again.json()["detail"]


@pytest.mark.parametrize("is_tenants", [True, False])
async def test_a_container_that_was_on_its_way_to_a_tenancy_that_ended_is_refused(
    services: Services, world: World, is_tenants: bool
) -> None:
    about = meta.ObjectMeta(name="train", namespace="t-alpha-0a1b2c")
    pod = core.Pod(metadata=about, spec=core.PodSpec(containers=(core.Container(name="main", image="demo"),)))
    place = Everywhere().new(about.namespace, for_tenancy=is_tenants)
    with pytest.raises(errors.Denied) as caught:
        await services.backend.lifecycle.submit(place.submission(pod))
    assert caught.value.reason == "TenancyGone"
    for made in (
        services.backend.volumes.create("data", place, labels={}, size=""),
        services.backend.secrets.create("token", place, {"value": b"x"}),
    ):
        with pytest.raises(errors.Denied) as caught:
            await made
        assert caught.value.reason == "TenancyGone"
    assert "t-alpha-0a1b2c" not in {one.metadata.name for one in (await world.store.list(core.Namespace)).items}
    assert not (await world.store.list(core.Pod, Selector(namespace=about.namespace))).items


async def test_a_namespace_that_outlived_its_tenancy_accepts_nothing(door: httpx.AsyncClient, world: World) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha"})
    namespace = await _stand(world)
    item = await world.store.get(Tenancy, "alpha")
    about = msgspec.structs.replace(item.metadata, finalizers=())
    await world.store.update(msgspec.structs.replace(item, metadata=about))
    await world.store.delete(Tenancy, "alpha")
    refused = await door.post("/v1/containers", json={"image": "demo", "namespace": namespace})
    assert (refused.status_code, refused.json()["reason"]) == (403, "TenancyGone")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": one} for one in ("Alpha", "../x", "a\0b")),
        {"name": "x", "egress": ["0.0.0.0/0"]},
        {"name": "x", "internet": "maybe"},
        {"name": "x", "quota": {"pods": "-1"}},
    ],
)
async def test_what_cannot_be_carried_out_is_refused(door: httpx.AsyncClient, wrong: dict[str, Any]) -> None:
    assert (await door.post("/v1/tenancies", json=wrong)).status_code == 422
    assert (await door.get("/v1/tenancies")).json()["items"] == []


async def test_a_test_says_what_was_reached_that_must_not_be(door: httpx.AsyncClient) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha"})
    found = (await door.post("/v1/tenancies/alpha/:test")).json()
    assert found["is_isolated"] is False
    assert (await door.post("/v1/tenancies/beta/:test")).status_code == 404


async def test_one_whose_containers_could_never_start_here_is_refused(door: httpx.AsyncClient, world: World) -> None:
    for query in ({}, {"dry_run": "true"}):
        answer = await door.post("/v1/tenancies", json={"name": "alpha", "isolation": "vm"}, params=query)
        assert answer.status_code == 503, answer.text
        assert answer.json()["reason"] == "IsolationUnavailable"
    assert not (await world.store.list(Tenancy)).items
    for isolation in ("none", "gvisor"):
        answer = await door.post("/v1/tenancies", json={"name": f"is-{isolation}", "isolation": isolation})
        assert answer.status_code == 201, answer.text


async def test_where_nothing_keeps_tenancies_none_is_made(api: httpx.AsyncClient) -> None:
    refused = await api.post("/v1/tenancies", json={"name": "alpha"})
    assert (refused.status_code, refused.json()["reason"]) == (503, "TenanciesAbsent")


async def test_the_quota_and_what_is_used_of_it_are_shown(door: httpx.AsyncClient, world: World) -> None:
    await door.post("/v1/tenancies", json={"name": "alpha", "quota": {"pods": "2"}})
    await _stand(world)
    quota = baseline.quota(await world.store.get(Tenancy, "alpha"))
    assert quota is not None
    await world.store.create(quota)
    await door.post("/v1/containers", json=RUN)
    shown = (await door.get("/v1/tenancies/alpha")).json()
    assert shown["used"] == {"pods": "1"}
    assert len((await world.store.list(core.Pod)).items) == 1
