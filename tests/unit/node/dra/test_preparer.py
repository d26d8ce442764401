"""Prepare and Unprepare on simulated silicon: what containers get, what is refused, and what is left when it fails."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Slot
from fairlead.node.dra import hardware
from fairlead.node.dra.preparer import ClaimRef
from fairlead.plan.dra import share
from fairlead.plan.dra.preparation import Preparation, Stage
from fairlead.plan.lease.row import State
from fairlead.silicon import port
from fairlead.silicon.sim import silicon as simulation
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.request import (
    CapacityRequirements,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
)
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec, ResourceClaimStatus
from tests.unit.node.dra.claimnode import ClaimNode, claim, config, result

ONE_G = "gpu-0-mig-1g10gb-19-0"


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClaimNode]:
    try:
        found = ClaimNode(tmp_path)
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    try:
        async with found.running():
            yield found
    finally:
        await found.close()


async def until(node: ClaimNode, index: int, state: State) -> None:
    async with asyncio.timeout(20):
        while node.row(index).state is not state:
            node.gate.poke()
            await asyncio.sleep(0.005)


async def test_a_claim_gets_its_gpu_and_gives_it_back(node: ClaimNode) -> None:
    made = claim("one", result("gpu-3"))
    assert await node.prepare(made) == ["k8s.gpu.nvidia.com/claim=uid-of-one-gpu-3"]
    assert node.nodes(made) == {"/dev/nvidia3"}
    assert node.row(3).state is State.HELD
    assert await node.prepare(made) == ["k8s.gpu.nvidia.com/claim=uid-of-one-gpu-3"]
    await node.unprepare(made)
    assert node.spec(made) is None
    await until(node, 3, State.FREE)
    await node.unprepare(made)  # a kubelet asks again where an answer was lost


async def test_each_step_is_told_and_then_that_it_is_unprepared(node: ClaimNode) -> None:
    made = claim("one", result("gpu-3"))
    await node.prepare(made)
    await node.unprepare(made)
    steps = [progress.step.value if progress is not None else "" for _, progress in node.told]
    assert steps == ["Asked", "GPUsHeld", "HardwareSet", "CDIFileWritten", "Prepared", ""]
    assert all(progress.reason == "" for _, progress in node.told if progress is not None)


async def test_why_a_claim_was_not_prepared_is_told_with_the_step_that_it_reached(node: ClaimNode) -> None:
    await node.prepare(claim("one", result("gpu-3")))
    with pytest.raises(errors.Conflict):
        await node.prepare(claim("two", result("gpu-3")))
    (name, told) = node.told[-1]
    assert told is not None
    assert (name, told.step.value, told.reason) == ("two", "Asked", "DevicePreparedTwice")
    assert "is prepared for claim team/one" in told.message
    assert "`fairlead dra check` names them" in told.message  # the next step


async def test_two_gpus_of_one_request_and_a_subrequest_are_named_by_their_base_request(node: ClaimNode) -> None:
    made = claim("two", result("gpu-0", request="big/fast"), result("gpu-1", request="big/fast"))
    ref = node.store.write(made)
    assert [(one.request, one.device) for one, _ in await node.preparer.prepare(ref)] == [
        ("big", "gpu-0"),
        ("big", "gpu-1"),
    ]


async def test_a_container_reads_what_its_request_got(node: ClaimNode) -> None:
    made = claim("two", result("gpu-0", request="big/fast"), result(ONE_G, request="small"))
    made = msgspec.structs.replace(
        made,
        metadata=msgspec.structs.replace(made.metadata, annotations={"resource.kubernetes.io/pod-claim-name": "mine"}),
    )
    with pytest.raises(errors.Invalid, match="twice"):  # the partition is on the whole GPU: nothing of it stays
        await node.prepare(made)
    assert not list((node.folder / "plugin").rglob("*.json"))
    made = msgspec.structs.replace(made, status=claim("x", result("gpu-1", request="big/fast")).status)
    ((_, names),) = await node.preparer.prepare(node.store.write(made))
    assert names == ("k8s.gpu.nvidia.com/claim=uid-of-two-gpu-1", "k8s.gpu.nvidia.com/claim=uid-of-two-metadata-big")
    spec = node.spec(made)
    assert spec is not None
    (mount,) = spec.devices[1].edits.mounts
    assert mount.container_path == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/mine/big/gpu.nvidia.com-metadata.json"
    )
    assert "ro" in mount.options
    newest, older = (json.loads(line) for line in Path(mount.host_path).read_text().splitlines())
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert older.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newest == older
    assert newest["podClaimName"] == "mine"
    assert [(one["name"], one["devices"][0]["name"]) for one in newest["requests"]] == [("big/fast", "gpu-1")]
    await node.unprepare(made)
    assert not list((node.folder / "plugin").rglob("*.json"))


@pytest.mark.parametrize("request_", ["container-0-request-0", "r" * 63, "r" * 62 + "s"])
async def test_a_request_of_any_length_has_a_name_in_the_cdi_file(node: ClaimNode, request_: str) -> None:
    """A UID has 36 characters and a CDI device at most 63: a scheduler's own requests were too long to be prepared."""
    made = claim("n" * 29, result("gpu-0", request=request_), result("gpu-1", request="other"))
    assert len(made.metadata.uid) == 36
    ((_, first), (_, _)) = await node.preparer.prepare(node.store.write(made))
    spec = node.spec(made)
    assert spec is not None
    assert {name.partition("=")[2] for name in first} <= {device.name for device in spec.devices}
    assert max(len(device.name) for device in spec.devices) <= 63
    assert len({device.name for device in spec.devices}) == 4
    await node.unprepare(made)


async def test_an_annotation_that_is_no_name_becomes_no_path(node: ClaimNode) -> None:
    made = claim("mine", result("gpu-1"))
    forged = {"resource.kubernetes.io/pod-claim-name": "../../../../../etc"}
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, annotations=forged))
    await node.prepare(made)
    spec = node.spec(made)
    assert spec is not None
    (mount,) = spec.devices[1].edits.mounts
    assert mount.container_path == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/gpus/gpu.nvidia.com-metadata.json"
    )


async def test_a_partition_is_made_for_a_claim_and_ended_with_it(node: ClaimNode) -> None:
    small, large = claim("small", result(ONE_G)), claim("large", result("gpu-0-mig-3g40gb-9-4"))
    await node.prepare(small)
    await node.prepare(large)
    slots = {one.slot for one in (await node.partition(0)).instances}
    assert slots == {Slot(profile="1g.10gb", start=0), Slot(profile="3g.40gb", start=4)}
    assert len(node.nodes(small)) == 3  # the GPU, and the instance's two capabilities
    assert node.nodes(small) != node.nodes(large)
    await node.unprepare(small)
    assert [one.slot.profile for one in (await node.partition(0)).instances] == ["3g.40gb"]
    assert node.row(0).state is State.HELD
    await node.unprepare(large)
    assert (await node.partition(0)).instances == ()
    await until(node, 0, State.FREE)
    whole = claim("whole", result("gpu-0"))
    await node.prepare(whole)  # MIG is switched off for it
    assert node.nodes(whole) == {"/dev/nvidia0"}


async def test_a_device_that_another_claim_has_is_refused_and_nothing_is_left(node: ClaimNode) -> None:
    await node.prepare(claim("first", result("gpu-0")))
    for late in (claim("late", result("gpu-0")), claim("part", result(ONE_G))):
        with pytest.raises(errors.Conflict):
            await node.prepare(late)
        assert node.spec(late) is None
    assert node.journal.uids() == {"uid-of-first"}


async def test_a_claim_waits_for_the_one_that_is_being_unprepared(node: ClaimNode) -> None:
    first, late = claim("first", result("gpu-0")), claim("late", result("gpu-0"))
    await node.prepare(first)
    node.patience_s = 20
    node.renew()
    async with asyncio.TaskGroup() as tasks:
        waits = tasks.create_task(node.prepare(late))
        await asyncio.sleep(0.3)
        assert not waits.done()
        await node.unprepare(first)
    assert waits.result() == ["k8s.gpu.nvidia.com/claim=uid-of-late-gpu-0"]


async def test_a_foreign_instance_is_named_and_never_destroyed(node: ClaimNode) -> None:
    gpu = (await node.partition(0)).gpu
    await node.partitioner.set_mode(gpu, is_enabled=True)
    await node.partitioner.create_instance(gpu, Slot(profile="1g.10gb", start=0))
    made = claim("late", result(ONE_G))
    with pytest.raises(errors.Conflict, match=r"1g.10gb@0 of GPU .* that no claim made"):
        await node.prepare(made)
    await node.unprepare(made)
    assert len((await node.partition(0)).instances) == 1
    assert node.journal.uids() == frozenset()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"uid": "uid-of-another"}, "ClaimReplaced"),
        ({"pods": ()}, "ClaimNotReserved"),
        ({"results": (result("gpu-99"),)}, "DeviceUnknown"),
        ({"results": (result("gpu-0"), result("gpu-0"))}, "ClaimOverlaps"),
        ({"results": (result("gpu-0", request="../../etc"),)}, "ClaimInvalid"),
        ({"configs": [config("GpuConfig", sharin={})]}, "ClaimConfigInvalid"),
        ({"configs": [config("MigDeviceConfig", ["gpus"])]}, "ClaimConfigInvalid"),
        ({"configs": [config("VfioDeviceConfig", ["gpus"])]}, "ClaimConfigInvalid"),
    ],
)
async def test_a_claim_that_is_not_what_the_kubelet_believes_is_refused(
    node: ClaimNode, more: dict[str, Any], reason: str
) -> None:
    results = more.pop("results", (result("gpu-0"),))
    made = claim("odd", *results, **more)
    ref = node.store.write(made)
    with pytest.raises(errors.FairleadError) as refused:
        await node.preparer.prepare(dataclasses.replace(ref, uid="uid-of-odd"))
    assert refused.value.reason == reason
    assert refused.value.hint
    assert node.journal.uids() == frozenset()


async def test_a_claim_without_an_allocation_is_refused(node: ClaimNode) -> None:
    made = msgspec.structs.replace(claim("early"), status=ResourceClaimStatus())
    with pytest.raises(errors.Conflict, match="is not allocated") as refused:
        await node.prepare(made)
    assert refused.value.reason == "ClaimNotAllocated"
    assert node.journal.uids() == frozenset()


async def test_a_claim_that_is_gone_is_refused_and_unprepared(node: ClaimNode) -> None:
    made = claim("brief", result("gpu-0"))
    await node.prepare(made)
    del node.store.claims["brief"]
    with pytest.raises(errors.NotFound):
        await node.preparer.prepare(ClaimRef(namespace="team", name="brief", uid="uid-of-brief"))
    assert await node.preparer.reap() == ("team/brief",)
    await until(node, 0, State.FREE)


async def test_while_the_api_server_is_away_what_is_prepared_is_answered(node: ClaimNode) -> None:
    made = claim("one", result("gpu-0"))
    first = await node.prepare(made)
    node.store.is_away = True
    assert await node.prepare(made) == first
    with pytest.raises(errors.Unavailable):
        await node.prepare(claim("two", result("gpu-1")))
    await node.unprepare(made)
    await until(node, 0, State.FREE)


async def test_a_claim_that_is_allocated_anew_is_prepared_anew(node: ClaimNode) -> None:
    await node.prepare(claim("one", result("gpu-0")))
    moved = claim("one", result("gpu-1"))
    assert await node.prepare(moved) == ["k8s.gpu.nvidia.com/claim=uid-of-one-gpu-1"]
    assert node.nodes(moved) == {"/dev/nvidia1"}
    await until(node, 0, State.FREE)


async def test_a_claim_of_two_pods_stays_under_the_one_that_runs(node: ClaimNode) -> None:
    made = claim("shared", result("gpu-0"), pods=("a", "b"))
    await node.prepare(made)
    node.pods = [_pod("a", "Succeeded"), _pod("b", "Running")]
    with pytest.raises(errors.Conflict, match="in use by pod b"):
        await node.unprepare(made)
    assert node.nodes(made) == {"/dev/nvidia0"}
    node.pods = [_pod("a", "Succeeded"), _pod("b", "Failed")]
    await node.unprepare(made)
    assert node.spec(made) is None


def _pod(name: str, phase: str) -> core.Pod:
    metadata = ObjectMeta(namespace="team", name=name, uid=f"uid-{name}")
    return core.Pod(metadata=metadata, status=core.PodStatus(phase=phase))


class RefusingSlices:
    """Time slices of a GPU that takes none, as one before Volta."""

    async def set_time_slice(self, gpu: GPUUUID, interval: int) -> None:
        raise errors.Unavailable(f"GPU {gpu} has no time slices", reason="TimeSliceRefused")


@pytest.mark.parametrize("slices", [None, RefusingSlices()], ids=["no-program", "refused"])
async def test_a_time_slice_that_cannot_be_set_leaves_no_gpu_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slices: port.TimeSlices | None
) -> None:
    monkeypatch.setattr(simulation.SimulatedSilicon, "time_slices", lambda _: slices)
    node = ClaimNode(tmp_path)
    sliced = config("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    try:
        async with node.running():
            with pytest.raises(errors.Unavailable):
                await node.prepare(claim("one", result("gpu-2"), configs=(sliced,)))
            assert not node.journal.uids()
            await until(node, 2, State.FREE)
            await node.prepare(claim("next", result("gpu-2")))
    finally:
        await node.close()


async def test_time_slices_are_set_for_a_claim_and_reset_after_it(node: ClaimNode) -> None:
    long = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    made = claim("slices", result("gpu-2"), configs=[config("GpuConfig", sharing=long)])
    await node.prepare(made)
    assert node.silicon.machine.gpus[2].time_slice == 3
    await node.unprepare(made)
    assert node.silicon.machine.gpus[2].time_slice == 0


async def test_mps_gives_a_claim_a_daemon_with_its_limits(node: ClaimNode) -> None:
    limits = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
    sharing = {"strategy": "MPS", "mpsConfig": limits}
    made = claim("mps", result("gpu-2"), configs=[config("GpuConfig", sharing=sharing)])
    await node.prepare(made)
    (daemon,) = node.daemons.values()
    assert (daemon.percent, daemon.memory_mib) == (50, 10 << 10)
    spec = node.spec(made)
    assert spec is not None
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in spec.devices[0].edits.env
    assert {mount.container_path for mount in spec.devices[0].edits.mounts} == {"/mps/pipe", "/dev/shm"}
    await node.unprepare(made)
    assert node.daemons == {}


async def test_of_two_configurations_the_claims_own_counts(node: ClaimNode) -> None:
    slices = [{"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": name}} for name in ("Short", "Long")]
    configs = [
        config("GpuConfig", source="FromClass", sharing=slices[0]),
        config("GpuConfig", ["gpus"], sharing=slices[1]),
        config("MigDeviceConfig"),
    ]
    await node.prepare(claim("both", result("gpu-0", request="gpus/first"), configs=configs))
    assert node.silicon.machine.gpus[0].time_slice == 3
    remarks = [text for _, reason, text in node.said if reason == "ClaimConfigUnused"]
    assert [text.partition(" of claim team/both")[0] for text in remarks] == [
        "config[0] (of the class)",
        "config[2] (of the claim)",
    ]


async def test_two_ways_of_sharing_one_gpu_are_refused(node: ClaimNode) -> None:
    node.shares = share.Shares()
    slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    first = claim("one", result("gpu-0", share_id="s1"), configs=[config("GpuConfig", sharing=slices)])
    await node.prepare(first)
    with pytest.raises(errors.Conflict, match="ask for different sharing"):
        await node.prepare(claim("two", result("gpu-0", share_id="s2")))
    same = claim("three", result("gpu-0", share_id="s3"), configs=[config("GpuConfig", sharing=slices)])
    await node.prepare(same)
    assert len(node.row(0).claims) == 2


async def test_claims_that_share_a_gpu_by_mps_have_one_daemon_and_each_its_own_limit(node: ClaimNode) -> None:
    node.shares = share.Shares(takes_all=True, enforced_by=share.Enforcement.MPS)
    small = claim("small", result("gpu-0", share_id="s1", consumed_capacity={"memory": "10Gi"}))
    large = claim("large", result("gpu-0", share_id="s2", consumed_capacity={"gpu.nvidia.com/memory": "20Gi"}))
    await node.prepare(small)
    await node.prepare(large)
    (daemon,) = node.daemons.values()
    assert (daemon.memory_mib, daemon.percent) == (20 << 10, None)  # no program can ask for more than the largest share
    spec = node.spec(small)
    assert spec is not None
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in spec.devices[0].edits.env
    await node.unprepare(large)
    assert [one.memory_mib for one in node.daemons.values()] == [10 << 10]
    await node.unprepare(small)
    assert node.daemons == {}


async def test_a_claim_with_another_way_of_sharing_than_its_gpus_is_refused_by_name(node: ClaimNode) -> None:
    node.shares = share.Shares(count=4, enforced_by=share.Enforcement.MPS)
    slices = config("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    with pytest.raises(errors.Invalid, match="time slices on gpu-0, which claims share by MPS"):
        await node.prepare(
            claim("slices", result("gpu-0", share_id="s1", consumed_capacity={"shares": "1"}), configs=[slices])
        )
    assert node.journal.uids() == frozenset()
    await node.prepare(claim("one", result("gpu-0", share_id="s2", consumed_capacity={"shares": "1"})))
    (daemon,) = node.daemons.values()
    assert daemon.percent == 25
    node.shares = share.Shares()  # the operator changed the setting: the GPU keeps its way of sharing until it is back
    with pytest.raises(errors.Conflict, match=r"team/plain and team/one share GPU .* different sharing: none and MPS"):
        await node.prepare(claim("plain", result("gpu-0", share_id="s3")))


@pytest.mark.parametrize("device", ["gpu-0", ONE_G])
async def test_a_share_id_in_a_claims_status_makes_no_device_two_claims(node: ClaimNode, device: str) -> None:
    for name in ("forged", "again"):
        with pytest.raises(errors.Invalid, match=f"a share of {device}, which this node offers to one claim") as caught:
            await node.prepare(claim(name, result(device, share_id="s1")))
        assert caught.value.reason == "ShareNotOffered"
        assert "delete the claim" in (caught.value.hint or "")
    assert node.journal.uids() == frozenset()
    await node.prepare(claim("tenant", result(device)))
    with pytest.raises(errors.Invalid):
        await node.prepare(claim("joins", result(device, share_id="s2")))
    assert [one.holder for one in node.row(0).claims] == ["uid-of-tenant"]


def asking(made: ResourceClaim, **amounts: str) -> ResourceClaim:
    """Return a claim whose request names these amounts."""
    exactly = ExactDeviceRequest(device_class_name="gpu", capacity=CapacityRequirements(requests=amounts))
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=(DeviceRequest(name="gpus", exactly=exactly),)))
    return msgspec.structs.replace(made, spec=spec)


@pytest.mark.parametrize(
    ("shares", "asked", "consumed", "says"),
    [
        (share.Shares(), {"memory": "10Gi"}, {"memory": "70Gi"}, "70Gi of memory .* its request takes 10Gi"),
        # nothing would be all of it
        (share.Shares(), {"memory": "10Gi"}, {"memory": "0"}, "0 of memory .* its request takes 10Gi"),
        (share.Shares(), {"memory": "10Gi"}, {}, "nothing of memory .* its request takes 10Gi"),
        (share.Shares(count=4), {"shares": "1"}, {"shares": "4", "memory": "0"}, "4 of shares .* its request takes 1"),
        (share.Shares(count=4), {}, {"shares": "1", "memory": "70Gi"}, "70Gi of memory .* its request takes 0"),
        (share.Shares(takes_all=True), {"memory": "1"}, {"memory": "1"}, "1 of memory .* its request takes 1Mi"),
        (share.Shares(takes_all=True), {"memory": "900Gi"}, {"memory": "900Gi"}, "does not offer that"),
        (share.Shares(), {"memory": "1Gi"}, {"memory": "1Gi", "cores": "7"}, "7 of cores .* its request takes nothing"),
        (share.Shares(), {"memory": "1Gi"}, {"memory": "\x1b[2J"}, "does not offer|2J' of memory"),
        (share.Shares(), {"memory": "1Gi"}, {"memory": "1e999999999"}, "1e999999999 of memory"),
        (share.Shares(), {"memory": "1Gi"}, {"memory": "-1Gi"}, "-1Gi of memory"),
    ],
)
async def test_an_amount_that_a_claim_did_not_ask_for_raises_no_limit(
    node: ClaimNode, shares: share.Shares, asked: dict[str, str], consumed: dict[str, str], says: str
) -> None:
    node.shares = dataclasses.replace(shares, enforced_by=share.Enforcement.MPS)
    forged = asking(claim("forged", result("gpu-0", share_id="s1", consumed_capacity=consumed)), **asked)
    with pytest.raises(errors.Invalid, match=says) as caught:
        await node.prepare(forged)
    assert caught.value.reason == "ShareNotAsked"
    assert "\x1b" not in caught.value.message
    assert node.journal.uids() == frozenset()
    assert node.daemons == {}


async def test_amounts_as_a_scheduler_writes_them_are_prepared(node: ClaimNode) -> None:
    node.shares = share.Shares(enforced_by=share.Enforcement.MPS)
    for name, asked, consumed in (
        ("plain", {"memory": "10Gi"}, {"memory": "10Gi"}),
        ("other-words", {"gpu.nvidia.com/memory": "1Gi"}, {"memory": "1024Mi"}),
        ("rounded", {"memory": "1"}, {"memory": "1Mi"}),
        ("none", {}, {"memory": "0"}),
    ):
        made = claim(name, result("gpu-0", share_id=f"s-{name}", consumed_capacity=consumed))
        await node.prepare(asking(made, **asked))
    assert len(node.journal.uids()) == 4


async def test_a_limit_is_not_raised_by_a_later_change_of_the_status(node: ClaimNode) -> None:
    node.shares = share.Shares(enforced_by=share.Enforcement.MPS)
    mine = asking(claim("mine", result("gpu-0", share_id="s1", consumed_capacity={"memory": "10Gi"})), memory="10Gi")
    await node.prepare(mine)
    raised = asking(claim("mine", result("gpu-0", share_id="s1", consumed_capacity={"memory": "70Gi"})), memory="10Gi")
    with pytest.raises(errors.Invalid, match="70Gi of memory of gpu-0 by its status, and its request takes 10Gi"):
        await node.prepare(raised)
    assert [one.memory_mib for one in node.daemons.values()] == [10 << 10], "what runs keeps its limit"


async def test_shares_of_one_gpu_come_to_no_more_than_it_has(node: ClaimNode) -> None:
    """Each has what it asks for, and together they have more: no scheduler gives that."""
    node.patience_s = 0
    node.shares = share.Shares(takes_all=True, enforced_by=share.Enforcement.MPS)

    def large(name: str, *amounts: str) -> ResourceClaim:
        found = (
            result("gpu-0", share_id=f"{name}-{number}", consumed_capacity={"memory": amount})
            for number, amount in enumerate(amounts)
        )
        return asking(claim(name, *found), memory=amounts[0])

    await node.prepare(large("first", "50Gi"))
    with pytest.raises(errors.Conflict, match="team/second has 40Gi of memory of gpu-0, and team/first 50Gi") as caught:
        await node.prepare(large("second", "40Gi"))
    assert caught.value.reason == "SharesExceeded"
    with pytest.raises(errors.Conflict, match="team/both has 40Gi of memory of gpu-0, and team/first 50Gi"):
        await node.prepare(large("both", "20Gi", "20Gi"))
    await node.prepare(large("third", "20Gi"))
    await node.unprepare(large("first", "50Gi"))
    await node.unprepare(large("third", "20Gi"))
    with pytest.raises(errors.Conflict, match="team/all has 100Gi of memory of gpu-0: the device has"):
        await node.prepare(large("all", "50Gi", "50Gi"))
    await node.prepare(large("second", "40Gi"))


async def test_a_share_stays_prepared_when_the_node_offers_its_device_by_another_policy(node: ClaimNode) -> None:
    node.shares = share.Shares(takes_all=True, enforced_by=share.Enforcement.MPS)
    mine = asking(claim("mine", result("gpu-0", share_id="s1", consumed_capacity={"memory": "10Gi"})), memory="10Gi")
    first = await node.prepare(mine)
    node.shares = share.Shares(count=4, enforced_by=share.Enforcement.MPS)
    assert await node.prepare(mine) == first
    assert [one.percent for one in node.daemons.values()] == [None], "its containers have the limits that they have"
    late = asking(claim("late", result("gpu-0", share_id="s2", consumed_capacity={"memory": "10Gi"})), memory="10Gi")
    with pytest.raises(errors.Invalid, match="nothing of shares of gpu-0 by its status, and its request takes 1"):
        await node.prepare(late)


async def test_a_share_id_that_is_no_uid_is_in_no_note(node: ClaimNode) -> None:
    node.shares = share.Shares()
    for text in ("../up", "a\0b", "s" * 64, "S1"):
        with pytest.raises(errors.Invalid, match="which is no UID"):
            await node.prepare(claim("one", result("gpu-0", share_id=text)))
    assert node.journal.uids() == frozenset()


@pytest.mark.parametrize("by", list(share.Enforcement))
async def test_a_share_that_is_prepared_stays_as_it_is_when_sharing_is_switched_off(
    node: ClaimNode, by: share.Enforcement
) -> None:
    node.shares = share.Shares(count=4, enforced_by=by)
    mine = claim("mine", result("gpu-0", share_id="s1", consumed_capacity={"shares": "1"}))
    others = claim("others", result("gpu-0", share_id="s2", consumed_capacity={"shares": "2"}))
    first = await node.prepare(mine)
    await node.prepare(others)
    before, daemons = node.spec(mine), dict(node.daemons)
    node.shares = None
    assert await node.prepare(mine) == first, "a kubelet asks again after its restart"
    assert (node.spec(mine), node.daemons) == (before, daemons)
    with pytest.raises(errors.Invalid, match="offers to one claim"):
        await node.prepare(claim("late", result("gpu-0", share_id="s3")))
    moved = claim("mine", result("gpu-0", share_id="s4"))  # the status was written again
    with pytest.raises(errors.Invalid, match="offers to one claim"):
        await node.prepare(moved)
    with pytest.raises(errors.Conflict):
        await node.prepare(claim("whole", result("gpu-0")))
    await node.unprepare(others)
    await node.unprepare(mine)
    await until(node, 0, State.FREE)


async def test_a_claims_own_limits_narrow_its_share(node: ClaimNode) -> None:
    node.shares = share.Shares(count=2, enforced_by=share.Enforcement.MPS)
    limits = {"defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "70Gi"}
    own = config("GpuConfig", sharing={"strategy": "MPS", "mpsConfig": limits})
    await node.prepare(claim("one", result("gpu-0", share_id="s1", consumed_capacity={"shares": "1"}), configs=[own]))
    (daemon,) = node.daemons.values()
    whole = node.watch.snapshots.value.inventory.gpus[0].memory_bytes >> 20
    assert (daemon.percent, daemon.memory_mib) == (30, whole // 2)


async def test_admin_access_sees_a_gpu_and_possesses_nothing(node: ClaimNode) -> None:
    await node.prepare(claim("tenant", result("gpu-0")))
    watcher = claim("watcher", result("gpu-0", admin_access=True))
    await node.prepare(watcher)
    assert node.nodes(watcher) == {"/dev/nvidia0"}
    await node.unprepare(watcher)
    assert node.row(0).state is State.HELD


@pytest.mark.parametrize("is_asked", [False, True])
async def test_admin_access_by_a_status_alone_sees_nothing(node: ClaimNode, is_asked: bool) -> None:
    await node.prepare(claim("tenant", result("gpu-0")))
    request = DeviceRequest(name="gpus", exactly=ExactDeviceRequest(admin_access=is_asked or None))
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=(request,)))
    watcher = msgspec.structs.replace(claim("watcher", result("gpu-0", admin_access=True)), spec=spec)
    if is_asked:
        await node.prepare(watcher)
        return
    with pytest.raises(errors.Invalid, match="its request asks for none") as caught:
        await node.prepare(watcher)
    assert caught.value.reason == "AdminAccessNotAsked"
    assert node.spec(watcher) is None


async def test_claims_of_different_gpus_do_not_wait_for_each_other(node: ClaimNode) -> None:
    await asyncio.gather(*(node.prepare(claim(f"c{number}", result(f"gpu-{number}"))) for number in range(8)))
    assert len(node.journal.all()) == 8
    assert {one.stage for one in node.journal.all()} == {Stage.DONE}


async def test_a_full_cdi_folder_leaves_nothing_behind(node: ClaimNode) -> None:
    folder = node.folder / "cdi"
    assert not folder.exists()
    folder.write_text("not a folder")
    with pytest.raises(errors.Unavailable):
        await node.prepare(claim("one", result(ONE_G)))
    assert node.journal.uids() == frozenset()
    assert (await node.partition(0)).instances == ()
    folder.unlink()
    await node.prepare(claim("one", result(ONE_G)))


async def test_a_full_folder_of_metadata_leaves_nothing_behind(node: ClaimNode) -> None:
    folder = node.folder / "plugin"
    folder.write_text("not a folder")
    with pytest.raises(errors.Unavailable, match="metadata of claim team/one"):
        await node.prepare(claim("one", result("gpu-0")))
    assert node.journal.uids() == frozenset()
    assert node.spec(claim("one")) is None
    folder.unlink()
    await node.prepare(claim("one", result("gpu-0")))


async def test_after_a_reboot_what_kubelets_take_for_prepared_is_there_again(tmp_path: Path) -> None:
    made = claim("part", result(ONE_G))
    before = ClaimNode(tmp_path)
    async with before.running():
        await before.prepare(made)
        gpu = (await before.partition(0)).gpu
        instance = (await before.partition(0)).instances[0]
        await before.partitioner.destroy_compute(gpu, instance.id, instance.computes[0].id)
        await before.partitioner.destroy_instance(gpu, instance.id)
        before.files.path(made.metadata.uid).unlink()
    await before.close()
    after = ClaimNode(tmp_path, boot="boot-2")
    async with after.running(restores=False):
        await after.preparer.restore()
        assert [one.slot.profile for one in (await after.partition(0)).instances] == ["1g.10gb"]
        assert len(after.nodes(made)) == 3
        assert after.row(0).state is State.HELD
    await after.close()


def _use(node: ClaimNode, index: int) -> None:
    """Put a process on every MIG device of a GPU."""
    gpu = node.silicon.machine.gpus[index]
    gpu.processes |= {(one.id, compute) for one in gpu.partition.instances.values() for compute in one.computes}


async def _begin_to_unprepare(folder: Path, *made: ResourceClaim) -> None:
    """Leave claims as a driver does that ends once their files are gone."""
    before = ClaimNode(folder)
    async with before.running():
        for one in made:
            await before.prepare(one)
            before.files.path(one.metadata.uid).unlink()
        _use(before, 0)
        before.silicon.machine.save()
    await before.close()


async def test_a_mig_device_in_use_whose_file_is_gone_keeps_it_and_has_its_file_at_once(tmp_path: Path) -> None:
    part, slices = claim("part", result(ONE_G)), {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    whole = claim("whole", result("gpu-1"), configs=[config("GpuConfig", sharing=slices)])
    await _begin_to_unprepare(tmp_path, part, whole)
    after = ClaimNode(tmp_path)
    async with after.running(restores=False):
        (was,) = (await after.partition(0)).instances
        after.silicon.machine.gpus[1].time_slice = 0
        async with asyncio.timeout(5):  # NVML refuses to destroy it, which is tried for ten seconds
            await after.preparer.restore()
        assert (await after.partition(0)).instances == (was,)
        assert len(after.nodes(part)) == 3
        assert after.silicon.machine.gpus[1].time_slice == 3
        assert after.said == []
    await after.close()


async def test_a_mig_device_of_which_half_is_gone_is_made_again(tmp_path: Path) -> None:
    part = claim("part", result(ONE_G))
    await _begin_to_unprepare(tmp_path, part)
    after = ClaimNode(tmp_path)
    async with after.running(restores=False):
        after.silicon.machine.gpus[0].processes.clear()
        standing = await after.partition(0)
        (was,) = standing.instances
        await after.partitioner.destroy_compute(standing.gpu, was.id, was.computes[0].id)
        after.watch.ask_scan(is_urgent=True)
        while after.watch.snapshots.value.inventory.gpus[0].mig_devices:
            await after.watch.snapshots.wait(after.watch.snapshots.version)
        await after.preparer.restore()
        (found,) = (await after.partition(0)).instances
        assert (found.slot, len(found.computes)) == (was.slot, 1)
        assert len(after.nodes(part)) == 3
    await after.close()


@pytest.mark.parametrize("first", ["unprepare", "prepare"])
async def test_a_call_that_comes_before_its_claim_is_restored_leaves_nothing_to_restore(
    tmp_path: Path, first: str
) -> None:
    made = claim("one", result("gpu-1"))
    await _begin_to_unprepare(tmp_path, made)
    after = ClaimNode(tmp_path)
    async with after.running(restores=False):
        if first == "unprepare":
            await after.unprepare(made)
        else:
            await after.prepare(made)
        told = len(after.told)
        await after.preparer.restore()
        assert len(after.told) == told
        assert (after.spec(made) is None) is (first == "unprepare")
        assert after.journal.uids() == (frozenset() if first == "unprepare" else {made.metadata.uid})
    await after.close()


async def test_calls_are_answered_while_claims_are_restored_and_one_for_such_a_claim_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = claim("slow", result("gpu-1"))
    await _begin_to_unprepare(tmp_path, slow)
    begun, goes_on = asyncio.Event(), asyncio.Event()
    renew = hardware.Hardware.renew

    async def held_up(self: hardware.Hardware, preparation: Preparation) -> Mapping[str, str]:
        begun.set()
        await goes_on.wait()
        return await renew(self, preparation)

    monkeypatch.setattr(hardware.Hardware, "renew", held_up)
    after = ClaimNode(tmp_path)
    async with after.running(), asyncio.timeout(20):
        await begun.wait()
        await after.prepare(claim("next", result("gpu-2")))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(after.unprepare(slow))
            await after.unprepare(claim("next", result("gpu-2")))
            assert not waiting.done()
            goes_on.set()
        assert after.spec(slow) is None
        assert after.journal.uids() == frozenset()
    await after.close()


async def test_a_claim_that_cannot_be_restored_is_said_and_holds_up_no_other(tmp_path: Path) -> None:
    stuck, other = claim("stuck", result("gpu-1")), claim("other", result("gpu-2"))
    await _begin_to_unprepare(tmp_path, stuck, other)
    after = ClaimNode(tmp_path)
    async with after.running(restores=False):
        after.files.path(stuck.metadata.uid).mkdir()
        await after.preparer.restore()
        assert [(name, text.startswith("not set up again after the start: ")) for name, _, text in after.said] == [
            ("team/stuck", True)
        ]
        assert after.nodes(other) == {"/dev/nvidia2"}
        after.files.path(stuck.metadata.uid).rmdir()
    await after.close()
