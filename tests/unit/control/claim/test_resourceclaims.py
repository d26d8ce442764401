"""Claims of pods: made from their templates once, given back with their last user, removed with their pod."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fairlead import telemetry
from fairlead.control.claim.resourceclaim import IDLE_S, ResourceClaims
from fairlead.plan.claim import where
from fairlead.plan.claim.life import lifecycle
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import (
    FINALIZER,
    POD_CLAIM_NAME,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from tests.unit.control.claim.taintplane import TEMPLATE, MachinePlane, naming, wait_for
from tests.unit.control.scheduler.claimplane import devices, read


async def test_a_pod_gets_the_claim_of_its_template_and_its_devices() -> None:
    plane = MachinePlane()
    await plane.prepare()
    async with plane.controlled():
        pod = await plane.add_user("p")
        await plane.until_bound(["p"])
    (claim,) = await plane.all_claims()
    assert claim.metadata.name.startswith("p-gpus-")
    assert claim.metadata.annotations == {"why": "test", POD_CLAIM_NAME: "gpus"}
    assert claim.metadata.labels == {"team": "a"}
    (owner,) = claim.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("Pod", pod.metadata.uid, True)
    stored = await plane.store.get(core.Pod, "p", "default")
    (status,) = stored.status.resource_claim_statuses
    assert (status.name, status.resource_claim_name) == ("gpus", claim.metadata.name)
    assert len(await plane.held()) == 2


async def test_a_template_that_comes_later_is_used_and_its_absence_is_said_once() -> None:
    plane = MachinePlane()
    await plane.add_class()
    await plane.add_machine("a", 4)
    async with plane.controlled():
        await plane.add_user("p")
        await plane.until_said("p", "which is to be made from template two")
        said = await wait_for(lambda: plane.messages("FailedResourceClaimCreation"))
        await plane.add_template()
        await plane.until_bound(["p"])
    assert len(said) == 1
    assert "two" in said[0]


@pytest.mark.parametrize("way", ["ends", "is removed"])
async def test_the_claim_of_a_pod_that_is_over_goes_and_its_devices_are_free(way: str) -> None:
    plane = MachinePlane()
    await plane.prepare(2)
    async with plane.controlled():
        await plane.add_user("first")
        await plane.until_bound(["first"])
        await plane.add_user("second")
        await plane.until_said("second", "cannot allocate all claims")
        await (plane.finish_pod("first") if way == "ends" else plane.end("first"))
        await plane.until_bound(["second"])
        await plane.until_claims(lambda every: len(every) == 1)
    assert {name[:6] for name in (await plane.held()).values()} == {"second"}


async def test_a_named_claim_is_given_back_by_its_last_user_and_stays() -> None:
    plane = MachinePlane()
    await plane.prepare()
    await plane.add_claim("shared", 2)
    async with plane.controlled():
        for name in ("one", "two"):
            await plane.add_user(name, naming("shared"))
        await plane.until_bound(["one", "two"])
        await plane.until_claims(lambda every: len(every[0].status.reserved_for) == 2)
        await plane.finish_pod("one")
        (claim,) = await plane.until_claims(lambda every: len(every[0].status.reserved_for) == 1)
        assert claim.status.allocation is not None
        await plane.finish_pod("two")
        (claim,) = await plane.until_claims(lambda every: FINALIZER not in every[0].metadata.finalizers)
    assert claim.status.allocation is None
    assert not claim.status.reserved_for


async def test_a_claim_that_is_used_is_removed_once_its_last_user_is_gone() -> None:
    plane = MachinePlane()
    await plane.prepare()
    await plane.add_claim("shared", 1)
    async with plane.controlled():
        await plane.add_user("p", naming("shared"))
        await plane.until_bound(["p"])
        await plane.store.delete(ResourceClaim, "shared", "default")
        await asyncio.sleep(0.05)
        assert len(await plane.all_claims()) == 1
        await plane.end("p")
        await plane.until_claims(lambda every: not every)


async def test_a_claim_that_is_allocated_and_was_never_used_keeps_its_devices_until_it_is_deleted() -> None:
    plane = MachinePlane()
    await plane.prepare()
    claim = await plane.add_claim("reserve", 1)
    about = msgspec.structs.replace(claim.metadata, finalizers=(FINALIZER,))
    claim = await plane.store.update(msgspec.structs.replace(claim, metadata=about))
    held = read("ResourceClaim", {"status": {"allocation": {"devices": {"results": [_RESULT]}}}})
    await plane.store.update_status(msgspec.structs.replace(claim, status=held.status))
    async with plane.controlled():
        await asyncio.sleep(0.05)
        (claim,) = await plane.all_claims()
        assert claim.status.allocation is not None
        await plane.store.delete(ResourceClaim, "reserve", "default")
        await plane.until_claims(lambda every: not every)


_RESULT = {"request": "gpus", "driver": "gpu.example.com", "pool": "a", "device": "gpu-0"}


async def test_users_that_are_not_pods_are_kept() -> None:
    plane = MachinePlane()
    claim = await plane.add_claim("group", 1)
    users = (
        ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="g", uid="g-1"),
        ResourceClaimConsumerReference(resource="pods", name="gone", uid="p-1"),
    )
    status = msgspec.structs.replace(claim.status, reserved_for=users)
    await plane.store.update_status(msgspec.structs.replace(claim, status=status))
    async with plane.controlled(schedules=False):
        (claim,) = await plane.until_claims(lambda every: len(every[0].status.reserved_for) == 1)
    assert claim.status.reserved_for[0].resource == "podgroups"


async def test_a_claim_that_somebody_removed_is_made_again() -> None:
    plane = MachinePlane()
    await plane.add_template()
    async with plane.controlled(schedules=False):
        await plane.add_user("p")
        (claim,) = await plane.until_claims(bool)
        await plane.store.delete(ResourceClaim, claim.metadata.name, "default")
        (again,) = await plane.until_claims(lambda every: every and every[0].metadata.uid != claim.metadata.uid)
    assert lifecycle.is_for(again, await plane.store.get(core.Pod, "p", "default"), "gpus")


async def test_a_name_that_another_object_has_is_passed_over() -> None:
    plane = MachinePlane()
    await plane.add_template()
    pod = await plane.add_user("p")
    await plane.add_claim(lifecycle.claim_name(pod, "gpus"), 1)
    async with plane.controlled(schedules=False):
        await plane.until_claims(lambda every: any(lifecycle.is_for(one, pod, "gpus") for one in every))
    assert len(await plane.all_claims()) == 2


async def test_a_pod_that_has_a_node_is_reserved_its_allocated_claim() -> None:
    plane = MachinePlane()
    await plane.prepare()
    await plane.add_claim("shared", 1)
    async with plane.controlled():
        await plane.add_user("one", naming("shared"))
        await plane.until_bound(["one"])
        await plane.add_user("static", naming("shared"), node_name="a")
        (claim,) = await plane.until_claims(lambda every: len(every[0].status.reserved_for) == 2)
    assert {one.name for one in claim.status.reserved_for} == {"one", "static"}


async def test_admin_access_needs_the_label_of_the_namespace_when_the_claim_is_made() -> None:
    plane = MachinePlane()
    tenants = meta.ObjectMeta(name="default", labels={"fairlead.dev/tenancy": "x"})
    await plane.store.create(core.Namespace(metadata=tenants))
    await plane.add_template("admin", adminAccess=True)
    async with plane.controlled(schedules=False):
        await plane.add_user("p", core.PodResourceClaim(name="all", resource_claim_template_name="admin"))
        said = await wait_for(lambda: plane.messages("FailedResourceClaimCreation"))
        assert "resource.kubernetes.io/admin-access" in said[0]
    assert not await plane.all_claims()


async def test_a_pod_says_that_no_driver_publishes_devices_and_goes_once_one_does() -> None:
    plane = MachinePlane()
    await plane.add_class()
    await plane.add_node("a", 0)
    await plane.add_template()
    async with plane.controlled():
        await plane.add_user("p")
        words = await plane.until_said("p", "no driver")
        assert words == "0/1 nodes are available: no driver publishes devices (no ResourceSlice)."
        await plane.publish("a", devices(4))
        await plane.until_bound(["p"])


async def test_a_shared_template_goes_once_no_pod_has_named_it_for_a_while() -> None:
    now = [0.0]
    plane = MachinePlane()
    plane.claims = ResourceClaims(plane.store, clock=lambda: now[0])
    spec = where.claim_spec(1, "gpu", where.Where())
    shared = await plane.store.create(lifecycle.shared_template(spec, "default"))
    name = shared.metadata.name
    await plane.add_user("p", core.PodResourceClaim(name="gpus", resource_claim_template_name=name))
    async with plane.controlled(schedules=False):
        await plane.until_claims(bool)
        now[0] += 2 * IDLE_S
        await plane.claims.reconcile(f"template:default/{name}")
        assert (await plane.store.get(_TEMPLATES, name, "default")).metadata.deletion_timestamp is None
        await plane.end("p")
        await plane.until_claims(lambda every: not every)
        assert await wait_for(lambda: plane.claims.reconcile(f"template:default/{name}")) == IDLE_S
        now[0] += IDLE_S + 1
        await plane.claims.reconcile(f"template:default/{name}")
        assert not (await plane.store.list(_TEMPLATES)).items


async def test_a_shared_template_that_is_marked_stays_for_a_pod_that_names_it() -> None:
    plane = MachinePlane()
    spec = where.claim_spec(1, "gpu", where.Where())
    shared = await plane.store.create(lifecycle.shared_template(spec, "default"))
    name = shared.metadata.name
    await plane.add_user("p", core.PodResourceClaim(name="gpus", resource_claim_template_name=name))
    await plane.store.delete(_TEMPLATES, name, "default")
    await ResourceClaims(plane.store).reconcile(f"template:default/{name}")
    async with plane.controlled(schedules=False):
        await plane.until_claims(bool)
        await plane.end("p")

        async def gone() -> bool:
            return not (await plane.store.list(_TEMPLATES)).items

        await wait_for(gone)


class _Killed(BaseException):
    """Stands for SIGKILL."""


_POINTS = ("claim.after-create", "claim.before-pod-status")


@pytest.mark.parametrize("point", _POINTS)
async def test_a_process_that_is_killed_while_it_makes_a_claim_makes_it_once(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = MachinePlane()
    await plane.add_template()
    pod = await plane.add_user("p")
    with monkeypatch.context() as armed:
        armed.setattr(telemetry, "crash_point", _killer(point))
        with pytest.raises(_Killed):
            await ResourceClaims(plane.store).reconcile("pod:default/p")
    async with plane.controlled(schedules=False):

        async def named() -> tuple[core.PodResourceClaimStatus, ...]:
            return (await plane.store.get(core.Pod, "p", "default")).status.resource_claim_statuses

        (status,) = await wait_for(named)
    (claim,) = await plane.all_claims()
    assert status.resource_claim_name == claim.metadata.name
    assert lifecycle.is_for(claim, pod, "gpus")


@pytest.mark.parametrize("point", ["claim.before-release", "claim.after-release"])
async def test_a_process_that_is_killed_while_it_frees_a_claim_frees_it(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = MachinePlane()
    await plane.prepare(2)
    async with plane.controlled():
        await plane.add_user("p")
        await plane.until_bound(["p"])
        (claim,) = await plane.all_claims()
    await plane.finish_pod("p")
    with monkeypatch.context() as armed:
        armed.setattr(telemetry, "crash_point", _killer(point))
        with pytest.raises(_Killed):
            await ResourceClaims(plane.store).reconcile(f"claim:default/{claim.metadata.name}")
    plane.claims = ResourceClaims(plane.store)
    async with plane.controlled(schedules=False):
        await plane.until_claims(lambda every: not every)


async def test_a_claim_whose_pod_went_while_it_was_made_is_removed() -> None:
    plane = MachinePlane()
    await plane.add_template()
    pod = await plane.add_user("p")
    orphan = lifecycle.from_template(pod, TEMPLATE, await plane.store.get(_TEMPLATES, "two", "default"))
    await plane.end("p")
    await plane.store.create(orphan)
    async with plane.controlled(schedules=False):
        await plane.until_claims(lambda every: not every)


_TEMPLATES = type(read("ResourceClaimTemplate", {"metadata": {"name": "t"}}))


def _killer(point: str) -> object:
    def kill(name: str) -> None:
        if name == point:
            raise _Killed

    return kill


@pytest.mark.parametrize(
    ("pod", "claim"),
    [("p", "gpus"), ("p" * 253, "gpus"), ("p", "g" * 63), ("a" * 120 + "." + "b" * 120, "c-" * 30 + "c")],
)
def test_the_name_of_a_claim_is_one_that_an_api_server_takes(pod: str, claim: str) -> None:
    named = core.Pod(metadata=meta.ObjectMeta(name=pod, namespace="default", uid="u"))
    found = [lifecycle.claim_name(named, claim, attempt) for attempt in range(2)]
    assert len({*found}) == 2
    assert all(len(one) <= 63 and ".-" not in one and "--" not in one.replace("c-", "") for one in found)
