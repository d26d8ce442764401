"""What a container is entitled to, by whom; and rules that do not come into force."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib import parse

import pytest

from fairlead import errors
from fairlead.kernel import cgroup as devicecgroup
from fairlead.model.devicerule import DeviceRule
from fairlead.model.ids import DeviceID
from fairlead.node.isolation import attach, entitlement
from fairlead.node.isolation.entitlement import AllocationSources, KubeletCheckpoint, Subject
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubernetes import names

KIND = "nvidia.com/gpu"
SPEC_RULES = [
    {"allow": False, "access": "rwm"},
    {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"},
    {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"},
    {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
]
CONFIG: Mapping[str, Any] = {
    "ociVersion": "1.0.2",
    "linux": {
        "devices": [
            {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o640},
            {"path": "/dev/other", "type": "c", "major": 11, "minor": 0},
            {"path": "/dev/pipe", "type": "p"},
        ],
        "resources": {"devices": SPEC_RULES},
    },
}


@pytest.fixture
def sources(tmp_path: Path) -> AllocationSources:
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    devices = []
    for minor in range(2):
        os.mknod(tmp_path / f"n{minor}", 0o20666, os.makedev(195, minor))
        node = {"path": f"/dev/nvidia{minor}", "hostPath": str(tmp_path / f"n{minor}"), "permissions": "rw"}
        devices.append({"name": f"GPU-{minor}", "containerEdits": {"deviceNodes": [node]}})
    os.mknod(tmp_path / "ctl", 0o20666, os.makedev(195, 255))
    common = {"deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": str(tmp_path / "ctl")}]}
    spec = {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices, "containerEdits": common}
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/x.json").write_text(json.dumps(spec))
    return AllocationSources(registry=attach.scan([tmp_path / "cdi"]))


def with_holdings(sources: AllocationSources, *holdings: Holding) -> AllocationSources:
    return AllocationSources(registry=sources.registry, holdings=holdings)


def holding(container: str, *ids: str, resource: str = KIND) -> Holding:
    return Holding(
        namespace="default", pod="train", container=container, resource=resource, ids=tuple(map(DeviceID, ids))
    )


LABELS = {
    names.POD_UID: "uid-1",
    names.POD_NAMESPACE: "default",
    names.POD_NAME: "train",
    names.CONTAINER_NAME: "main",
    names.DEVICES: json.dumps({KIND: ["GPU-0"]}),
}


CONFIG_OF_CRIO: Mapping[str, Any] = {
    **CONFIG,
    "annotations": {**LABELS, "io.container.manager": "cri-o", "io.kubernetes.cri-o.ContainerID": "c1"},
}


def test_the_kubelets_checkpoint_goes_before_label_and_runtime_spec(sources: AllocationSources) -> None:
    asked = with_holdings(sources, holding("main", "GPU-1::2", "GPU-1::3"), holding("other", "GPU-0"))
    found = entitlement.find(Subject(config=CONFIG_OF_CRIO, id="c1"), asked)
    assert (found.source, found.names) == ("kubelet", (f"{KIND}=GPU-1",))
    assert [node.path for node in found.entitlement.granted] == ["/dev/nvidiactl", "/dev/nvidia1"]
    # What the runtime spec allows of this host's devices is not its own by that alone; the rest is.
    assert found.entitlement.base.access("c", 195, 0) == ""
    assert found.entitlement.base.access("c", 10, 229) == "rwm"


CLAIM = "k8s.gpu.nvidia.com/claim"


@pytest.fixture
def claimed(tmp_path: Path, sources: AllocationSources) -> AllocationSources:
    """The same machine, where a DRA driver has prepared a claim with the second GPU."""
    node = {"path": "/dev/nvidia1", "hostPath": str(tmp_path / "n1"), "permissions": "rw"}
    device = {"name": "u1-gpu-1", "containerEdits": {"deviceNodes": [node]}}
    spec = {"cdiVersion": "0.5.0", "kind": CLAIM, "devices": [device]}
    (tmp_path / "cdi/claim.json").write_text(json.dumps(spec))
    return dataclasses.replace(sources, registry=attach.scan([tmp_path / "cdi"]))


def test_the_devices_of_a_claim_are_an_entitlement(claimed: AllocationSources) -> None:
    given = holding("main", "gpu-1", f"{CLAIM}=u1-gpu-1", resource="gpu.nvidia.com")
    asked = AllocationSources(registry=claimed.registry, holdings=(given,), written=WRITTEN)
    found = entitlement.find(Subject(labels=OURS), asked)
    assert (found.source, found.names) == ("kubelet", (f"{CLAIM}=u1-gpu-1",))
    assert "/dev/nvidia1" in {node.path for node in found.entitlement.granted}


def test_a_kubelet_that_is_away_has_written_down_the_claims_of_a_pod(claimed: AllocationSources) -> None:
    written = KubeletCheckpoint(home="home-1", claimed={"uid-1": (f"{CLAIM}=u1-gpu-1",)})
    found = entitlement.find(Subject(labels=OURS), dataclasses.replace(claimed, written=written))
    assert (found.source, found.names) == (entitlement.CHECKPOINT, (f"{CLAIM}=u1-gpu-1",))


def test_devices_that_were_asked_for_by_name_are_those_of_the_container_itself(claimed: AllocationSources) -> None:
    name = f"{CLAIM}=u1-gpu-1"  # whatever kind it is of
    for container, given in (("main", (name,)), ("other", ())):
        written = KubeletCheckpoint(home="home-1", named={("uid-1", container): (name,)})
        found = entitlement.find(Subject(labels=OURS), dataclasses.replace(claimed, written=written))
        assert (found.source, found.names) == (entitlement.CHECKPOINT, given)


def test_a_device_by_name_that_no_spec_defines_any_more_is_named_with_its_kind(claimed: AllocationSources) -> None:
    given = (f"{CLAIM}=u1-gpu-1", "lab.example/thing=gone", "lab.example/thing=full")
    written = KubeletCheckpoint(home="home-1", named={("uid-1", "main"): given})
    with pytest.raises(errors.NotFound, match=r'"lab.example/thing=gone" of lab.example/thing is in none'):
        entitlement.find(Subject(labels=OURS), dataclasses.replace(claimed, written=written))


def test_a_kubelet_that_says_nothing_of_it_means_none(sources: AllocationSources) -> None:
    found = entitlement.find(Subject(config=CONFIG_OF_CRIO, id="c1"), with_holdings(sources))
    assert (found.source, found.names, found.entitlement.granted) == ("kubelet", (), ())


@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_a_label_that_an_image_can_carry_says_nothing_of_devices(sources: AllocationSources, place: str) -> None:
    forged = {**LABELS, names.DEVICES: json.dumps({KIND: ["GPU-1"]})}
    subject = (
        Subject(config=CONFIG, labels=forged)
        if place == "labels"
        else Subject(config={**CONFIG, "annotations": forged})
    )
    found = entitlement.find(subject, sources)
    assert found.source == entitlement.SPEC
    assert [node.path for node in found.entitlement.granted] == ["/dev/nvidia0"]


def test_an_images_labels_do_not_make_a_container_another_pods(sources: AllocationSources) -> None:
    asked = with_holdings(sources, holding("main", "GPU-1"))
    poses = {key: text for key, text in LABELS.items() if key != names.HOME}
    podman = {"io.container.manager": "libpod", "io.kubernetes.cri-o.ContainerID": "forged"}
    cri = {"io.kubernetes.cri.sandbox-namespace": "default", "io.kubernetes.cri.sandbox-name": "train"}
    cri["io.kubernetes.cri.container-name"] = "main"
    for subject in (
        Subject(config=CONFIG, labels=poses, id="c1"),
        Subject(config={**CONFIG, "annotations": {**poses, **podman}}, id="c1"),
        Subject(config={**CONFIG, "annotations": {**cri, **podman}}, id="c1"),
        Subject(config={**CONFIG, "annotations": cri}, labels={"any": "label"}, id="c1"),
    ):
        assert entitlement.find(subject, asked).source == entitlement.SPEC
    crio = {**poses, "io.container.manager": "cri-o", "io.kubernetes.cri-o.ContainerID": "c1"}
    for notes in (cri, crio):
        found = entitlement.find(Subject(config={**CONFIG, "annotations": notes}, id="c1"), asked)
        assert (found.source, found.names) == ("kubelet", (f"{KIND}=GPU-1",))


def test_without_any_source_the_runtime_spec_counts(sources: AllocationSources) -> None:
    found = entitlement.find(Subject(config=CONFIG), sources)
    assert found.source == entitlement.SPEC
    (node,) = found.entitlement.granted  # a node without a rule that opens it is no grant, and a pipe is no device
    assert (node.path, node.mode) == ("/dev/nvidia0", 0o640)


WIDE: Mapping[str, Any] = {
    "ociVersion": "1.0.2",
    "linux": {
        "devices": [{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1, "fileMode": 0o666}],
        "resources": {"devices": [{"allow": True, "access": "rwm"}]},
    },
}
"""What podman writes for `--privileged`."""
OURS = {names.HOME: "home-1", **LABELS, names.DEVICES: json.dumps({KIND: ["GPU-1"]})}
"""Its label names the GPU it was given first, or one that somebody forged."""
WRITTEN = KubeletCheckpoint(home="home-1", held={("uid-1", "main"): {KIND: ("GPU-0",)}})


def with_checkpoint(sources: AllocationSources, written: KubeletCheckpoint, *holdings: Holding) -> AllocationSources:
    return AllocationSources(registry=sources.registry, holdings=holdings or None, written=written)


@pytest.mark.parametrize("config", [CONFIG, WIDE, None])
@pytest.mark.parametrize("has_kubelet", [True, False])
def test_a_container_of_ours_is_entitled_to_its_allocation_alone_whatever_its_runtime_spec_says(
    sources: AllocationSources, config: Mapping[str, Any] | None, has_kubelet: bool
) -> None:
    asked = with_checkpoint(sources, WRITTEN, *([holding("main", "GPU-0")] if has_kubelet else []))
    found = entitlement.find(Subject(config=config, labels=OURS), asked)
    assert (found.source, found.doubt) == ("kubelet" if has_kubelet else "checkpoint", "")
    assert found.names == (f"{KIND}=GPU-0",)
    assert found.entitlement.base.rules == ()
    assert not found.entitlement.is_unconfined


@pytest.mark.parametrize("changed", [{names.POD_UID: "uid-2"}, {names.CONTAINER_NAME: "other"}])
def test_a_container_of_ours_of_which_the_checkpoint_says_nothing_has_no_devices(
    sources: AllocationSources, changed: dict[str, str]
) -> None:
    found = entitlement.find(Subject(config=CONFIG, labels=OURS | changed), with_checkpoint(sources, WRITTEN))
    assert (found.source, found.names, found.doubt) == ("checkpoint", (), "")


@pytest.mark.parametrize(
    ("written", "labels", "why"),
    [
        (KubeletCheckpoint(problem="not readable"), OURS, "this machine's is not readable"),
        (KubeletCheckpoint(home="home-1", problem="it is damaged"), OURS, "no kubelet answers, and it is damaged"),
        (WRITTEN, OURS | {names.HOME: "forged"}, "its home id is forged, and this machine's is home-1"),
        (WRITTEN, OURS | {names.POD_UID: ""}, "which entry"),
    ],
)
def test_a_container_that_says_it_is_ours_and_no_source_knows_cannot_be_judged(
    sources: AllocationSources, written: KubeletCheckpoint, labels: dict[str, str], why: str
) -> None:
    found = entitlement.find(Subject(config=WIDE, labels=labels), with_checkpoint(sources, written))
    assert (found.source, found.names, found.entitlement.granted) == ("no source", (), ())
    assert found.entitlement.base.rules == ()
    assert why in found.doubt


def test_an_image_that_names_a_home_poses_as_nobody(sources: AllocationSources) -> None:
    asked = with_checkpoint(sources, WRITTEN, holding("main", "GPU-1"))
    found = entitlement.find(Subject(config=WIDE, labels=OURS | {names.HOME: "forged"}), asked)
    assert found.source == "no source"
    assert found.doubt


@pytest.mark.parametrize("written", [str, parse.quote])
def test_the_runtime_spec_says_whose_a_container_is_where_its_engine_is_not_asked(
    sources: AllocationSources, written: Callable[[str], str]
) -> None:
    notes = {key: written(text) for key, text in OURS.items()}
    found = entitlement.find(Subject(config={**WIDE, "annotations": notes}), with_checkpoint(sources, WRITTEN))
    assert (found.source, found.names, found.entitlement.is_unconfined) == ("checkpoint", (f"{KIND}=GPU-0",), False)


def test_what_the_asker_names_counts_before_all(sources: AllocationSources) -> None:
    found = entitlement.find(Subject(config=CONFIG, labels=LABELS), sources, asked=[f"{KIND}=GPU-1"])
    assert (found.source, found.names) == ("--device", (f"{KIND}=GPU-1",))


def test_a_pod_is_known_by_what_containerd_writes_into_the_runtime_spec() -> None:
    notes = {
        "io.kubernetes.cri.sandbox-namespace": "n",
        "io.kubernetes.cri.sandbox-name": "p",
        "io.kubernetes.cri.container-name": "c",
    }
    assert entitlement.identity(Subject(config={"annotations": notes})) == ("n", "p", "c")
    assert entitlement.identity(Subject()) is None


def test_a_device_of_another_kind_is_found_by_its_id_alone(sources: AllocationSources) -> None:
    assert entitlement.cdi_names({"nvidia.com/gpu.shared": ["GPU-1::0"]}, sources.registry) == [f"{KIND}=GPU-1"]
    with pytest.raises(errors.NotFound, match="GPU-9"):
        entitlement.cdi_names({KIND: ["GPU-9"]}, sources.registry)


def test_nothing_known_is_entitled_to_what_every_container_has() -> None:
    found = entitlement.by_spec(None)
    assert (found.granted, found.rules().access("c", 1, 3), found.rules().access("c", 195, 0)) == ((), "rwm", "m")


# rules that do not come into force


def fake_cgroup(folder: Path, listed: str) -> devicecgroup.Cgroup:
    """A folder of plain files: what is written changes nothing."""
    (folder / "devices.list").write_text(listed)
    for name in ("devices.allow", "devices.deny"):
        (folder / name).write_text("")
    return devicecgroup.Cgroup(folder, 1)


def rule(minor: int, access: str = "rw") -> DeviceRule:
    return DeviceRule(kind="c", major=195, minor=minor, access=access)


def test_a_rule_that_was_written_and_does_not_hold_is_an_error(tmp_path: Path) -> None:
    cgroup = fake_cgroup(tmp_path, "c 1:3 rwm\nc 195:* rw\n")
    with pytest.raises(errors.Conflict, match="c 195:1 rw was denied and is still allowed"):
        devicecgroup.change([cgroup], deny=[rule(1)])
    with pytest.raises(errors.Conflict, match="c 10:1 rw was allowed and is still denied"):
        devicecgroup.change([cgroup], allow=[DeviceRule(kind="c", major=10, minor=1, access="rw")])
    assert (tmp_path / "devices.deny").read_text() == "c 195:1 rw"


def test_everything_is_taken_by_one_word(tmp_path: Path) -> None:
    cgroup = fake_cgroup(tmp_path, "a *:* rwm\n")
    every = [DeviceRule(kind=kind, major=None, minor=None, access="rwm") for kind in ("b", "c")]
    with pytest.raises(errors.Conflict, match=r"b \*:\* rwm was denied and is still allowed"):
        devicecgroup.change([cgroup], deny=every)
    assert (tmp_path / "devices.deny").read_text() == "a"


def test_a_number_taken_from_everything_is_hidden_and_no_error(tmp_path: Path) -> None:
    assert devicecgroup.change([fake_cgroup(tmp_path, "a *:* rwm\n")], deny=[rule(1)]).lines == ("a *:* rwm",)
    assert (tmp_path / "devices.deny").read_text() == "c 195:1 rw"


def test_what_a_default_of_everything_hides_is_said(tmp_path: Path) -> None:
    found = devicecgroup.read([fake_cgroup(tmp_path, "a *:* rwm\n")])
    assert found.restricting == ()
    assert "lists grants only" in found.unread[0]


def test_rules_that_cannot_be_read_are_not_changed(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be read, so") as caught:
        devicecgroup.change([devicecgroup.Cgroup(tmp_path, 1)], allow=[rule(0)])
    assert caught.value.reason == "RulesUnreadable"


def test_rules_that_cannot_be_read_back_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup = fake_cgroup(tmp_path, "c 195:1 rwm\n")
    before = devicecgroup.read([cgroup])
    after = dataclasses.replace(before, lines=(), rules=None, unread=("devices.list: EIO",))
    readings = iter((before, after))
    monkeypatch.setattr(devicecgroup, "read", lambda _: next(readings))
    with pytest.raises(errors.Unavailable, match="written and cannot be read back") as caught:
        devicecgroup.change([cgroup], deny=[rule(1)])
    assert caught.value.reason == "RulesUnreadable"


def test_a_kernel_that_refuses_is_named(tmp_path: Path) -> None:
    cgroup = fake_cgroup(tmp_path, "c 1:3 rwm\n")
    (tmp_path / "devices.allow").unlink()
    (tmp_path / "devices.allow").mkdir()
    with pytest.raises(errors.Unavailable, match="cannot write"):
        devicecgroup.change([cgroup], allow=[rule(0)])


def test_a_folder_that_is_no_cgroup_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match="is not a cgroup"):
        devicecgroup.at(tmp_path, Path("/"))


def test_two_hierarchies_hold_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    cgroups = [
        fake_cgroup(tmp_path / "one", "c 195:0 rw\nc 195:1 rw\n"),
        fake_cgroup(tmp_path / "two", "c 195:1 rw\nc 1:3 rwm\n"),
    ]
    found = devicecgroup.read(cgroups)
    assert (found.lines, len(found.restricting)) == (("c 195:1 rw",), 2)


@pytest.mark.parametrize(("device", "name"), [("MIG-1", "MIG-1"), ("MIG-1::2", "MIG-1"), ("GPU-1", "GPU-1")])
def test_an_allocation_is_what_the_agents_own_spec_says_whatever_a_vendors_file_says(
    tmp_path: Path, device: str, name: str
) -> None:
    node = {"deviceNodes": [{"path": "/dev/null"}]}
    for kind in (KIND, "fairlead.dev/gpu"):
        devices = [{"name": one, "containerEdits": node} for one in ("GPU-1", "MIG-1")]
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": devices}
        (tmp_path / f"{kind.replace('/', '-')}.json").write_text(json.dumps(spec))
    found = entitlement.cdi_names({"nvidia.com/mig-1g.10gb": [device]}, attach.scan([tmp_path]))
    assert found == [f"fairlead.dev/gpu={name}"]


def test_what_containers_get_beside_their_gpus_is_no_neighbours(tmp_path: Path, sources: AllocationSources) -> None:
    os.mknod(tmp_path / "fs", 0o20666, os.makedev(240, 0))
    node = {"path": "/dev/nvidia-fs0", "hostPath": str(tmp_path / "fs")}
    device = {"name": "all", "containerEdits": {"deviceNodes": [node]}}
    spec = {"cdiVersion": "0.5.0", "kind": "fairlead.dev/gds", "devices": [device]}
    (tmp_path / "cdi/gds.json").write_text(json.dumps(spec))
    known = attach.known_nodes(attach.scan([tmp_path / "cdi"]))
    assert {(node.major, node.minor) for node in known} == {(195, 0), (195, 1)}


async def test_an_attach_that_cannot_be_taken_back_says_both_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise errors.Unavailable("the kernel refuses", reason="RulesUnreadable", hint="as root")

    monkeypatch.setattr(devicecgroup, "change", refuse)
    cause = errors.Conflict("a file stands there", reason="NodeTaken")
    with pytest.raises(errors.Unavailable) as caught:
        await attach._take_back((), [rule(1)], cause)
    assert caught.value.message == "a file stands there; what was allowed could not be taken back: the kernel refuses"
    assert (caught.value.reason, caught.value.hint) == ("RulesUnreadable", "as root")
