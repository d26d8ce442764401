"""What a node gives away: each reason to withhold a device, in its order, and what ends with the supply before."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import settings
from fairlead.model import replica
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Inventory, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan import supply
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import clash, nodeconfig
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.sharing import mps
from fairlead.plan.vfio import slot
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.nvidia import pluginreader
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.plan.sharing.test_mps import gpu

RESOURCE = "nvidia.com/gpu"
GPUS = tuple(gpu(number) for number in range(4))
NAMES = frozenset(f"fairlead.dev/gpu={one.uuid}" for one in GPUS)
SPECS = supply.Specs(names=NAMES, folder="/run/cdi")
WELL = supply.Facts(specs=SPECS)
_LARGEST = 4 << 20


def node_config(text: str = "{}") -> nodeconfig.NodeConfig:
    return nodeconfig.plan_config(settings.Settings(), pluginreader.parse(text, source="f"))


def shared(replicas: int) -> nodeconfig.NodeConfig:
    resource = f"{{name: {RESOURCE}, replicas: {replicas}}}"
    return node_config(f"sharing: {{timeSlicing: {{resources: [{resource}]}}}}")


def snapshot(count: int = 2) -> Snapshot:
    gpus = GPUS[:count]
    return Snapshot(inventory=Inventory(gpus=gpus), known={one.uuid: one for one in gpus}, is_scanned=True)


def planned(
    facts: supply.Facts = WELL, before: supply.Supply = supply.NOTHING, config: nodeconfig.NodeConfig | None = None
) -> supply.Supply:
    return supply.plan(snapshot(), config or node_config(), facts, before, resource=RESOURCE)


def held(pod: str = "keep", *ids: str) -> Holding:
    return Holding(namespace="team", pod=pod, container="main", resource="other/gpu", ids=tuple(map(DeviceID, ids)))


def test_what_is_well_is_given_away() -> None:
    found = planned()
    (ad,) = found.resources
    assert [(device.id, device.is_healthy) for device in ad.devices] == [("GPU-0", True), ("GPU-1", True)]
    assert (found.withheld, found.clashes, found.daemons) == ({}, {}, {})


ENGINE = ("EngineCannot", "the engine ignores CDI names")
PART = ("MIGChanging", "its GPU is being partitioned anew")
LEASE = ("LeaseDirty", "not clean yet")
DISPUTED = conflict.Conflict(path="/run/cdi/a.json", other="/etc/cdi/b.yaml", devices=("fairlead.dev/gpu=GPU-0",))
REASONS: tuple[tuple[supply.Facts, str], ...] = (
    (dataclasses.replace(WELL, engine=ENGINE), ENGINE[0]),
    (dataclasses.replace(WELL, withheld=({"GPU-0": PART}, {"GPU-0": LEASE})), PART[0]),
    (dataclasses.replace(WELL, withheld=({}, {"GPU-0": LEASE})), LEASE[0]),
    (dataclasses.replace(WELL, specs=dataclasses.replace(SPECS, conflicts=(DISPUTED,))), conflict.REASON),
    (
        dataclasses.replace(WELL, specs=dataclasses.replace(SPECS, names=NAMES - {DISPUTED.devices[0]})),
        "CDISpecMissing",
    ),
    (
        dataclasses.replace(
            WELL, mps=supply.MPSFacts(folders={}, states={GPUUUID("GPU-0"): mps.DaemonState(mps.DRAINING, "ends")})
        ),
        mps.DRAINING,
    ),
    (dataclasses.replace(WELL, holders=supply.Holders(unknown="the kubelet has not said")), clash.UNKNOWN),
    (dataclasses.replace(WELL, holders=supply.Holders(listed=(held("keep", "GPU-0"),))), clash.REASON),
)


@pytest.mark.parametrize(("facts", "reason"), REASONS)
def test_each_reason_withholds_the_device_and_says_why(facts: supply.Facts, reason: str) -> None:
    found = planned(facts)
    (ad,) = found.resources
    first = ad.devices[0]
    assert (first.is_healthy, first.reason) == (False, reason)
    verdict = found.withheld[GPUUUID("GPU-0")]
    assert (verdict.reason, bool(verdict.message)) == (reason, True)


@pytest.mark.parametrize("number", range(len(REASONS) - 1))
def test_an_earlier_reason_is_told_before_a_later_one(number: int) -> None:
    earlier, later = REASONS[number][0], REASONS[number + 1][0]
    both = {
        field.name: getattr(one, field.name)
        for one in (later, earlier)
        for field in dataclasses.fields(one)
        if getattr(one, field.name) != getattr(WELL, field.name)
    }
    assert planned(dataclasses.replace(WELL, **both)).withheld[GPUUUID("GPU-0")].reason == REASONS[number][1]


def test_one_device_of_two_is_withheld_by_its_own_name() -> None:
    (ad,) = planned(dataclasses.replace(WELL, withheld=({"GPU-1": LEASE},))).resources
    assert [device.reason for device in ad.devices] == ["", LEASE[0]]


def test_a_resource_that_is_gone_is_listed_once_without_devices() -> None:
    before = planned()
    renamed = supply.plan(snapshot(), node_config(), WELL, before, resource="fairlead.dev/gpu")
    assert {ad.resource: len(ad.devices) for ad in renamed.resources} == {"fairlead.dev/gpu": 2, RESOURCE: 0}
    assert [ad.resource for ad in supply.without_ended(renamed).resources] == ["fairlead.dev/gpu"]


def test_a_clash_stands_as_long_as_its_pod_lives_whatever_the_kubelet_lists() -> None:
    living = core.Pod(metadata=meta.ObjectMeta(name="keep", namespace="team", uid="u1"))
    first = planned(dataclasses.replace(WELL, holders=supply.Holders(listed=(held("keep", "GPU-0"),), pods=(living,))))
    assert clash.concerns(first.clashes, living)
    forgotten = planned(dataclasses.replace(WELL, holders=supply.Holders(pods=(living,))), first)
    assert forgotten.clashes == first.clashes
    assert planned(dataclasses.replace(WELL, holders=supply.Holders(pods=())), forgotten).clashes == {}


def test_as_many_replicas_of_one_gpu_as_a_file_may_ask_for_are_given_away() -> None:
    found = supply.plan(snapshot(1), shared(16_384), WELL, resource=RESOURCE)
    assert [len(ad.devices) for ad in found.resources] == [16_384]
    assert found.withheld == {}


def test_a_list_beyond_what_a_kubelet_takes_is_withheld_with_both_figures() -> None:
    gpus = [dataclasses.replace(one, uuid=GPUUUID(f"GPU-0123abcd-0123-4567-89ab-{one.index:012}")) for one in GPUS]
    many = Snapshot(inventory=Inventory(gpus=tuple(gpus)), known={one.uuid: one for one in gpus})
    found = supply.plan(many, shared(16_384), WELL, resource=RESOURCE)
    assert [ad.devices for ad in found.resources] == [()]
    assert {verdict.reason for verdict in found.withheld.values()} == {supply.LIST_TOO_LARGE}
    (message,) = {verdict.message for verdict in found.withheld.values()}
    assert "65536 devices of nvidia.com/gpu" in message
    assert str(_LARGEST) in message


@pytest.mark.parametrize("is_healthy", [True, False])
def test_the_size_is_reckoned_at_no_less_than_it_is(*, is_healthy: bool) -> None:
    name = replica.name(DeviceID("GPU-0123abcd-0123-4567-89ab-000000000003"), 16_383)
    health = "Healthy" if is_healthy else "Unhealthy"
    line = pb.Device(ID=name, health=health, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=7)]))
    sent = pb.ListAndWatchResponse(devices=[line]).ByteSize()
    assert len(name) + supply._LINE - 8 <= sent <= len(name) + supply._LINE


def passing(*modules: int, partitions: tuple[tuple[int, ...], ...] = ()) -> Snapshot:
    """Return a machine with a GPU by driver, and others that are passed through."""
    passed = tuple(
        PassthroughGPU(
            key=GPUUUID(f"pcie-{one}"),
            vendor=Vendor.NVIDIA,
            address=f"0000:8{one}:00.0",
            model="GH100 [H100]",
            module=one,
            group_nodes=(DeviceNode(path=f"/dev/vfio/{one}", host_path="/x", major=240, minor=one, mode=0o600),),
        )
        for one in modules
    )
    files = DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=passed, partitions=partitions)
    return dataclasses.replace(snapshot(1), drivers=(files,))


@pytest.mark.parametrize(
    ("scheme", "left"),
    [
        ("slots", {"nvidia.com/h100-x1": ["x1-2", "x1-3"], "nvidia.com/h100-x2": ["x2-2.3"]}),
        ("kata", {"nvidia.com/pgpu": ["x1-2", "x1-3"]}),
        ("kubevirt", {"nvidia.com/GH100_H100": ["0000:82:00.0", "0000:83:00.0"]}),
    ],
)
def test_no_resource_has_a_gpu_that_claims_get(scheme: str, left: dict[str, list[str]]) -> None:
    """Nor a slot of several with it: one GPU has one door, under every name that device plugins have for it."""
    config = node_config("fairlead: {claims: {devices: ['0000:81:00.0', '0000:84:00.0']}}")
    seen = passing(1, 2, 3, 4, partitions=((1, 2), (2, 3), (1, 2, 3, 4)))
    found = supply.plan(seen, config, WELL, resource=RESOURCE, naming=slot.Naming(scheme=slot.Scheme(scheme)))
    assert found.doors.claimed == {"pcie-1", "pcie-4"}
    offered = {ad.resource: [str(one.id) for one in ad.devices] for ad in found.resources if ad.resource != RESOURCE}
    assert offered == left


def test_ids_by_number_stay_where_claims_get_the_first_gpu() -> None:
    config = node_config("fairlead: {claims: {devices: ['0000:81:00.0']}}")
    naming = slot.Naming(scheme=slot.Scheme.INDEX)
    before = supply.plan(passing(1, 2, 3), config, WELL, resource="example.com/gpu", naming=naming)
    assert [[str(one.id) for one in ad.devices] for ad in before.resources if ad.resource == RESOURCE] == [["1", "2"]]


def test_where_claims_get_every_gpu_no_resource_has_one() -> None:
    chosen = settings.override(settings.Settings(), {"node.door": "claims"})
    found = supply.plan(
        passing(1, 2), nodeconfig.plan_config(chosen, None), WELL, resource=RESOURCE, naming=slot.Naming()
    )
    assert found.resources == ()
    assert found.doors.claimed == {"GPU-0", "pcie-1", "pcie-2"}
