"""Claims for GPUs that are passed through: nodes by policy, one user at a time, reset between two, nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.driver import PassthroughGPU
from fairlead.node.dra.preparer import ClaimRef
from fairlead.plan.dra.passthrough import Backend
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.lease.row import State
from fairlead.plan.vfio import slot, slotoffer
from tests.unit.node.dra.claimnode import ClaimNode, claim, config, passed, result

ONE, TWO = passed(1), passed(2)
FIRST = "gpu-vfio-1"


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClaimNode]:
    try:
        found = ClaimNode(tmp_path, passed=(ONE, TWO))
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))
    try:
        async with found.running():
            for gpu in (ONE, TWO):
                await found.until_passed(gpu, State.FREE)
            yield found
    finally:
        await found.close()


def policy(policy: str = "", *requests: str, **more: Any) -> Any:
    iommu = {**({"backendPolicy": policy} if policy else {}), **more}
    return config("VfioDeviceConfig", requests, iommu=iommu)


async def test_a_claim_has_the_nodes_of_its_gpu_and_nothing_of_a_driver(node: ClaimNode) -> None:
    made = claim("vm", result(FIRST))
    assert await node.prepare(made) == ["k8s.gpu.nvidia.com/claim=uid-of-vm-gpu-vfio-1"]
    assert node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/41"}
    spec = node.spec(made)
    assert spec is not None
    assert spec.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert (spec.edits.mounts, spec.edits.device_nodes) == ((), ())
    assert node.passed_row(ONE).state is State.HELD
    node.take(ONE).close()  # the third gate has let go of it
    with pytest.raises(errors.Conflict):
        node.take(TWO)
    assert await node.prepare(made) == ["k8s.gpu.nvidia.com/claim=uid-of-vm-gpu-vfio-1"]


async def test_a_gpu_beside_it_with_a_driver_brings_the_drivers_files(node: ClaimNode) -> None:
    made = claim("both", result(FIRST, request="vm"), result("gpu-2", request="host"))
    await node.prepare(made)
    assert node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/41", "/dev/nvidia2"}
    spec = node.spec(made)
    assert spec is not None
    assert spec.edits.mounts
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec.edits.env


async def test_a_gpu_that_its_machine_still_has_is_given_to_nobody_and_then_reset_and_given_on(node: ClaimNode) -> None:
    first, second = claim("one", result(FIRST)), claim("two", result(FIRST))
    await node.prepare(first)
    machine = node.take(ONE)
    before = len(node.resets)
    await node.unprepare(first)
    assert node.spec(first) is None
    assert node.passed_row(ONE).state is State.RELEASING
    with pytest.raises(errors.Unavailable, match="not verified"):
        await node.prepare(second)
    assert node.resets[before:] == []
    machine.close()
    await node.until_passed(ONE, State.FREE)
    assert node.resets[before:] == [str(ONE.key)]
    assert await node.prepare(second)


async def test_a_preparation_waits_for_a_machine_that_ends(tmp_path: Path) -> None:
    node = ClaimNode(tmp_path, passed=(ONE,), patience_s=10)
    async with node.running():
        await node.until_passed(ONE, State.FREE)
        first = claim("one", result(FIRST))
        await node.prepare(first)
        machine = node.take(ONE)
        await node.unprepare(first)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(node.prepare(claim("two", result(FIRST))))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            machine.close()
        assert waiting.result() == ["k8s.gpu.nvidia.com/claim=uid-of-two-gpu-vfio-1"]
    await node.close()


async def test_two_claims_never_have_one_gpu(node: ClaimNode) -> None:
    made = [claim(name, result(FIRST)) for name in ("a", "b", "c")]
    done = await asyncio.gather(*(node.prepare(one) for one in made), return_exceptions=True)
    refused = [one for one in done if isinstance(one, errors.FairleadError)]
    assert [one.reason for one in refused] == ["DevicePreparedTwice"] * 2
    assert sum(node.spec(one) is not None for one in made) == 1


def _slot(gpu: PassthroughGPU) -> tuple[str, Device]:
    (ad,), _ = slotoffer.plan_resources(slot.Naming().slots([gpu]), {}, ())
    return ad.resource, ad.devices[0]


async def test_of_both_doors_one_gives_a_gpu_whatever_comes_first(node: ClaimNode) -> None:
    """Allocate and Prepare for one GPU at once: the ledger gives it to one, and the other is told."""
    resource, device = _slot(ONE)
    winners = set[str]()
    for turn in range(12):
        made = claim(f"vm-{turn}", result(FIRST))
        calls = [node.prepare(made), node.gate.hold(resource, [device])]
        done = await asyncio.gather(*(calls if turn % 2 else calls[::-1]), return_exceptions=True)
        (refused,) = [one for one in done if isinstance(one, BaseException)]
        assert isinstance(refused, errors.FairleadError)
        (held,) = node.passed_row(ONE).claims
        winners.add("claim" if held.holder else "slot")
        assert (node.spec(made) is not None) is bool(held.holder)
        assert node.passed_row(TWO).state is State.FREE
        await node.unprepare(made)
        if not held.holder:  # the kubelet lists the pod that asked, which ends
            node.listed.append(Holding(namespace="team", pod="a", container="c", resource=resource, ids=(device.id,)))
            async with asyncio.timeout(20):
                while not node.passed_row(ONE).claims[0].is_seen:
                    node.gate.poke()
                    await asyncio.sleep(0.005)
            node.listed.clear()
        await node.until_passed(ONE, State.FREE)
    assert winners == {"claim", "slot"}


@pytest.mark.parametrize(
    ("configs", "ways", "nodes"),
    [
        ((), {"/dev/vfio/vfio", "/dev/vfio/41"}, Backend.GROUP),
        ((policy("LegacyOnly"),), {"/dev/vfio/vfio", "/dev/vfio/41"}, Backend.GROUP),
        ((policy("PreferIommuFD"),), {"/dev/iommu", "/dev/vfio/devices/vfio1"}, Backend.IOMMUFD),
        ((policy("PreferIommuFD", enableAPIDevice=False),), {"/dev/vfio/devices/vfio1"}, Backend.IOMMUFD),
        ((policy("LegacyOnly", enableAPIDevice=False),), {"/dev/vfio/41"}, Backend.GROUP),
        ((policy(enableAPIDevice=True),), {"/dev/vfio/vfio", "/dev/vfio/41"}, Backend.GROUP),
        (
            (policy("LegacyOnly"), policy("PreferIommuFD", "gpus")),
            {"/dev/iommu", "/dev/vfio/devices/vfio1"},
            Backend.IOMMUFD,
        ),
        ((config("VfioDeviceConfig"),), {"/dev/vfio/vfio", "/dev/vfio/41"}, Backend.GROUP),
    ],
)
async def test_the_claim_says_by_which_nodes_its_gpu_is_opened(
    node: ClaimNode, configs: tuple[Any, ...], ways: set[str], nodes: Backend
) -> None:
    made = claim("vm", result(FIRST), configs=configs)
    await node.prepare(made)
    assert node.nodes(made) == ways
    known = node.journal.find("uid-of-vm")
    assert known is not None
    assert [one.backend for one in known.devices] == [nodes]
    assert not [text for _, _, text in node.said if "prefers" in text]


async def test_a_kernel_without_groups_serves_iommufd_and_refuses_legacy_only(node: ClaimNode) -> None:
    await node.change_passed(dataclasses.replace(ONE, group_nodes=()), TWO)
    plain = claim("plain", result(FIRST))
    await node.prepare(plain)
    assert node.nodes(plain) == {"/dev/iommu", "/dev/vfio/devices/vfio1"}
    await node.unprepare(plain)
    with pytest.raises(errors.DeviceFault, match="by iommufd alone") as caught:
        await node.prepare(claim("old", result(FIRST), configs=[policy("LegacyOnly")]))
    assert "PreferIommuFD" in str(caught.value.hint)


async def test_what_prefers_iommufd_gets_the_group_where_there_is_none_and_that_is_said(node: ClaimNode) -> None:
    await node.change_passed(dataclasses.replace(ONE, iommufd_nodes=()), TWO)
    made = claim("vm", result(FIRST), configs=[policy("PreferIommuFD")])
    await node.prepare(made)
    assert node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/41"}
    assert node.said == [
        (
            "team/vm",
            "ClaimConfigUnused",
            "claim team/vm prefers iommufd, and this node's kernel has none for gpu-vfio-1: it gets the group",
        )
    ]


@pytest.mark.parametrize(
    ("made", "reason", "words"),
    [
        (
            claim("x", result(FIRST), configs=[config("GpuConfig", ["gpus"])]),
            "ClaimConfigInvalid",
            "VfioDeviceConfig is for",
        ),
        (claim("x", result(FIRST), configs=[config("MigDeviceConfig", ["gpus"])]), "ClaimConfigInvalid", "gpu-vfio-1"),
        (
            claim("x", result("gpu-0"), configs=[policy("LegacyOnly", "gpus")]),
            "ClaimConfigInvalid",
            "vfio.gpu.nvidia.com",
        ),
        (claim("x", result(FIRST), configs=[policy("Legacy")]), "ClaimConfigInvalid", "backendPolicy"),
        (claim("x", result(FIRST, share_id="5f1a9a0e-0d35-4a40-9a3c-6f3a3f2d0001")), "SharingUnsupported", "one user"),
        (claim("x", result(FIRST, admin_access=True)), "AdminAccessUnsupported", "one user at a time"),
        (claim("x", result(FIRST, request="a"), result(FIRST, request="b")), "ClaimOverlaps", "twice"),
        (claim("x", result("gpu-vfio-7")), "DeviceUnknown", "is not on this node"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_held(
    node: ClaimNode, made: Any, reason: str, words: str
) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        await node.prepare(made)
    assert caught.value.reason == reason
    assert words in errors.sentence(caught.value)
    assert node.journal.uids() == frozenset()
    assert node.passed_row(ONE).state is State.FREE


async def test_a_config_of_gpus_without_request_is_no_matter_of_a_passed_gpu(node: ClaimNode) -> None:
    made = claim("vm", result(FIRST), configs=[config("GpuConfig"), policy("PreferIommuFD")])
    await node.prepare(made)
    assert node.nodes(made) == {"/dev/iommu", "/dev/vfio/devices/vfio1"}
    assert [reason for _, reason, _ in node.said] == ["ClaimConfigUnused"]


@pytest.mark.parametrize(
    "why",
    ["its IOMMU group is not viable while 0000:81:00.1 is bound to snd_hda_intel; bind it", "81 is off the bus"],
)
async def test_a_gpu_that_cannot_be_used_is_refused_with_what_mends_it(node: ClaimNode, why: str) -> None:
    await node.change_passed(dataclasses.replace(ONE, problem=why), TWO)
    with pytest.raises(errors.DeviceFault) as caught:
        await node.prepare(claim("vm", result(FIRST)))
    assert why in caught.value.message
    assert node.journal.uids() == frozenset()


async def test_a_machine_reads_where_its_gpu_is(node: ClaimNode) -> None:
    made = claim("vm", result(FIRST, request="gpu"))
    await node.prepare(made)
    spec = node.spec(made)
    assert spec is not None
    (mount,) = spec.devices[1].edits.mounts
    assert mount.container_path.endswith("/resourceclaims/vm/gpu/gpu.nvidia.com-metadata.json")
    (device,) = json.loads(Path(mount.host_path).read_text().splitlines()[0])["requests"][0]["devices"]
    assert device["name"] == FIRST
    assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:81:00.0"}
    assert device["attributes"]["type"] == {"string": "vfio"}


async def test_a_file_follows_a_gpu_that_is_bound_anew(node: ClaimNode) -> None:
    made = claim("vm", result(FIRST))
    await node.prepare(made)
    gone = dataclasses.replace(ONE, group_nodes=(), iommufd_nodes=(), problem="off the bus", is_lost=True)
    await node.change_passed(gone, TWO)
    await node.preparer.renew()
    assert node.spec(made) is None  # its number below /dev/vfio may be another's
    await node.change_passed(passed(1, group_nodes=passed(7).group_nodes), TWO)
    await node.preparer.renew()
    assert node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/47"}
    assert node.passed_row(ONE).state is State.HELD


async def test_after_a_reboot_a_claim_is_set_up_again_once_its_gpu_is_bound(tmp_path: Path) -> None:
    made = claim("vm", result(FIRST))
    node = ClaimNode(tmp_path, passed=(ONE, TWO))
    async with node.running():
        await node.until_passed(ONE, State.FREE)
        await node.prepare(made)
    await node.close()
    node = ClaimNode(tmp_path, passed=(), boot="boot-2")
    node.store.write(made)
    async with node.running():
        assert node.spec(made) is None or node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/41"}
        await node.preparer.renew()
        await node.change_passed(passed(1, group_nodes=passed(9).group_nodes), TWO)
        await node.preparer.renew()
        assert node.nodes(made) == {"/dev/vfio/vfio", "/dev/vfio/49"}
        await node.preparer.unprepare(ClaimRef(namespace="team", name="vm", uid=made.metadata.uid))
        await node.until_passed(passed(1, group_nodes=passed(9).group_nodes), State.FREE)
    await node.close()
