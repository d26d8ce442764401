"""The doctor's judgement: a pure function from what was seen; each finding says why and how to mend it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import settings
from fairlead.cli.doctor import machine_checks, machine_facts, specs
from fairlead.cli.doctor.sharing import passthrough
from fairlead.engine import machine
from fairlead.kernel import socketpeer
from fairlead.model.gpu import GPU, GPUHealth, UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.model.vfio import Function, FunctionKind, Snapshot
from fairlead.node.engines import judge
from fairlead.plan.cdi import conflict
from fairlead.serve.backend.hardware import EngineView, GPUListing, GPUView, Holder
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.nodes.view import NodeView

_NODE = NodeView(
    name="one",
    state="ready",
    reason="",
    capacity={},
    allocatable={"nvidia.com/gpu": "8"},
    used={},
    taints=(),
    kernel="",
    engine="",
)
_GPUS = tuple(
    GPUView(
        gpu=GPU(
            uuid=GPUUUID(f"GPU-{index}"),
            index=index,
            minor=index,
            pci_bus_id=f"0000:0{index}:00.0",
            name="H100",
            memory_bytes=80 << 30,
        ),
        node="one",
        holders=(),
        health="Healthy",
    )
    for index in range(8)
)
_LISTING = GPUListing(gpus=_GPUS, unreadable=(), drivers=(), is_simulated=False)
_CDI = specs.Facts(
    engine="podman 4.3.1",
    own_folder=Path("/var/run/cdi"),
    resolved=(("fairlead.dev/gpu=GPU-0", "/var/run/cdi/a.json"),),
)


def _ill(index: int, reason: str, message: str = "", *, health: str = "Unhealthy") -> GPUListing:
    """A listing in which one GPU is ill."""
    views = list(_GPUS)
    views[index] = msgspec.structs.replace(views[index], health=health, reason=reason, message=message)
    return msgspec.structs.replace(_LISTING, gpus=tuple(views))


def _reading(**values: Any) -> GPUListing:
    """A listing in which GPU 2 reads so."""
    views = list(_GPUS)
    gpu = dataclasses.replace(views[2].gpu, health=GPUHealth(**values))
    views[2] = msgspec.structs.replace(views[2], gpu=gpu)
    return msgspec.structs.replace(_LISTING, gpus=tuple(views))


_NONE = msgspec.structs.replace(_LISTING, gpus=())
_LOST = UnreadableGPU(index=5, pci_bus_id=None, uuid=GPUUUID("GPU-5"), reason="Lost", message="nvml: GPU is lost")
_STOPPED = socketpeer.Server(pid=7, state="T (stopped)")
_GOOD = machine_facts.Seen(
    advice=machine.advice(settings.EngineSettings()),
    service="fairlead 1 at x",
    service_error="",
    is_root=True,
    kernel="6.1",
    engine=EngineView(name="podman", version="4.3.1", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=1),
    gpus=_LISTING,
    silicon_error="",
    profile="",
    driver_problems=(),
    nodes=(_NODE,),
    node="one",
    resource="nvidia.com/gpu",
    cdi=_CDI,
)


def _with(healthy: str, *, total: str = "8", nic: str = "") -> NodeView:
    more = {"example.com/nic": "2"} if nic else {}
    own = {"example.com/nic": nic} if nic else {}
    capacity = {"cpu": "4", "nvidia.com/gpu": total, **more}
    return msgspec.structs.replace(_NODE, capacity=capacity, allocatable={"nvidia.com/gpu": healthy, **own})


_OLD = msgspec.structs.replace(_GOOD.engine, cdi_ceiling="0.3.0")


def test_a_good_machine_has_one_good_word_for_every_layer() -> None:
    found = list(machine_checks.check(_GOOD))
    assert {item.level for item in found} == {"ok"}
    assert [item.check for item in found] == [
        "silicon",
        "driver",
        "kernel",
        "state",
        "engine",
        "cdi",
        "service",
        "kubelet",
        "plugin",
    ]


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_node_whose_gpus_are_all_for_virtual_machines_lacks_no_driver(is_wanted: bool) -> None:
    driver = "" if is_wanted else "vfio-pci"
    board = Function(address="0000:0f:00.0", kind=FunctionKind.GPU, vendor=0x10DE, device=0x2330, driver=driver)
    facts = passthrough.Facts(snapshot=Snapshot(functions=(board,)), is_wanted=is_wanted)
    found = list(machine_checks.check(dataclasses.replace(_GOOD, gpus=_NONE, passthrough=facts)))
    served = dataclasses.replace(_GOOD, gpus=_NONE, passthrough=facts, server=socketpeer.Server(pid=7, state="S"))
    for one in (found, list(machine_checks.check(served))):
        silicon = next(item for item in one if item.check == "silicon")
        assert (silicon.level, "of 1 are bound to VFIO" in silicon.what) == ("ok", True)
    bound_to_nothing = Snapshot(functions=(dataclasses.replace(board, driver=""),))
    other = dataclasses.replace(facts, is_wanted=False, snapshot=bound_to_nothing)
    found = list(machine_checks.check(dataclasses.replace(_GOOD, gpus=_NONE, passthrough=other)))
    assert next(item for item in found if item.check == "silicon").level == "fail"


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"gpus": _NONE}, "silicon", "fail"),
        ({"silicon_error": "driver not loaded"}, "silicon", "fail"),
        ({"gpus": msgspec.structs.replace(_LISTING, unreadable=(_LOST,))}, "gpus", "fail"),
        ({"driver_problems": ("libcuda is missing",)}, "driver", "warn"),
        ({"is_root": False}, "kernel", "warn"),
        ({"engine": EngineView(problem="podman is not installed", hint="install it")}, "engine", "fail"),
        ({"engine": _OLD}, "engine", "warn"),
        ({"engine": msgspec.structs.replace(_GOOD.engine, notes=("runc is used",))}, "engine", "warn"),
        ({"listing": machine_facts.EngineListing(broken=("web-1",))}, "engine", "warn"),
        ({"listing": machine_facts.EngineListing(problem="cannot list containers")}, "engine", "fail"),
        ({"cdi": dataclasses.replace(_CDI, resolved=(), failures=(("a/b=c", "no CDI spec"),))}, "cdi", "fail"),
        ({"cdi": dataclasses.replace(_CDI, is_read=False)}, "cdi", "fail"),
        ({"cdi": dataclasses.replace(_CDI, newer=(("/etc/cdi/x.json", "1.0.0"),))}, "cdi", "fail"),
        ({"cdi": dataclasses.replace(_CDI, broken=(("/etc/cdi/x.json", "not JSON"),))}, "cdi", "warn"),
        ({"cdi": dataclasses.replace(_CDI, open_to=("/etc/cdi/x.json",))}, "cdi", "warn"),
        ({"service": "", "service_error": "no service runs here"}, "service", "warn"),
        ({"nodes": ()}, "kubelet", "fail"),
        ({"nodes": (msgspec.structs.replace(_NODE, state="notready"),)}, "kubelet", "fail"),
        ({"nodes": (msgspec.structs.replace(_NODE, allocatable={}),)}, "plugin", "fail"),
        ({"nodes": (_with("0"),)}, "plugin", "fail"),
        ({"nodes": (_with("7"),)}, "plugin", "warn"),
        ({"nodes": (_with("0", total="0"),)}, "plugin", "fail"),
        ({"nodes": (_with("8", nic="0"),)}, "plugin", "fail"),
        ({"nodes": (_with("8", nic="1"),)}, "plugin", "warn"),
        ({"gpus": _ill(6, "XID79", "fell off the bus")}, "gpus", "fail"),
        ({"gpus": _ill(4, "ECCUncorrected")}, "gpus", "fail"),
        ({"gpus": _ill(2, "TemperatureHigh", "97 C, limit 95 C")}, "gpus", "warn"),
        ({"gpus": _reading(temperature_c=97)}, "gpus", "warn"),
        ({"gpus": _reading(remap_pending=True)}, "gpus", "warn"),
        ({"gpus": _reading(ecc_uncorrected=3)}, "gpus", "warn"),
        ({"disks": ("/var/lib/fairlead lies on a disk that is full",)}, "state", "fail"),
        ({"database": "state.db is damaged"}, "state", "fail"),
        ({"history": HistoryView(days=14, problem="the disk is full")}, "history", "warn"),
        ({"history": HistoryView(days=0, problem="history.db is a folder")}, "history", "warn"),
        ({"history": HistoryView(days=14, set_aside="/s/history.db.damaged")}, "history", "warn"),
        ({"kubelet": machine_facts.Kubelet(socket=Path("/k"), problem="no answer")}, "kubelet", "fail"),
        ({"rules": machine_facts.Rules(differing={"default/x": "c 195:3 rw"})}, "isolation", "fail"),
        ({"rules": machine_facts.Rules(doubtful={"default/x": "no spec"})}, "isolation", "warn"),
    ],
)
def test_each_fault_is_found_and_says_why_it_matters(changes: dict[str, object], check: str, level: str) -> None:
    found = [item for item in machine_checks.check(dataclasses.replace(_GOOD, **changes)) if item.level != "ok"]  # type: ignore[arg-type]
    assert [(item.check, item.level) for item in found] == [(check, level)]
    assert found[0].why


@pytest.mark.parametrize(
    ("nodes", "check"),
    [((), "kubelet"), ((msgspec.structs.replace(_NODE, allocatable={}),), "plugin")],
)
def test_a_service_that_is_starting_is_not_failing(nodes: tuple[NodeView, ...], check: str) -> None:
    def found(age_s: float) -> list[tuple[str, str]]:
        seen = dataclasses.replace(_GOOD, nodes=nodes, age_s=age_s)
        return [(item.check, item.level) for item in machine_checks.check(seen) if item.level != "ok"]

    assert found(1.0) == [(check, "warn")]
    assert found(60.0) == [(check, "fail")]


def test_every_resource_is_named_with_its_numbers() -> None:
    seen = dataclasses.replace(_GOOD, nodes=(_with("6", nic="2"),))
    found = {item.what: item.level for item in machine_checks.check(seen) if item.check == "plugin"}
    assert found == {"2 healthy example.com/nic advertised": "ok", "6 of 8 nvidia.com/gpu healthy": "warn"}


def test_gpus_that_are_all_divided_are_not_missed_whole() -> None:
    views = [msgspec.structs.replace(one, gpu=dataclasses.replace(one.gpu, mig_enabled=True)) for one in _GPUS]
    listing = msgspec.structs.replace(_LISTING, gpus=tuple(views))
    for left in ({"nvidia.com/gpu": "0"}, {}):
        amounts = {"cpu": "4", "nvidia.com/mig-3g.40gb": "16", **left}
        node = msgspec.structs.replace(_NODE, capacity=amounts, allocatable=amounts)
        found = machine_checks.check(dataclasses.replace(_GOOD, nodes=(node,), gpus=listing))
        said = [(item.level, item.what) for item in found if item.check == "plugin"]
        assert said == [("ok", "16 healthy nvidia.com/mig-3g.40gb advertised")]
    nothing = msgspec.structs.replace(_NODE, capacity={"nvidia.com/gpu": "0"}, allocatable={})
    found = machine_checks.check(dataclasses.replace(_GOOD, nodes=(nothing,), gpus=listing))
    assert [item.level for item in found if item.check == "plugin"] == ["fail"]


def test_each_ill_gpu_has_a_finding_that_names_it_since_when_and_who_has_it() -> None:
    holder = Holder(device="GPU-6", namespace="default", container="train")
    views = list(_ill(6, "XID79", "fell off the bus").gpus)
    since = (dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    views[6] = msgspec.structs.replace(views[6], holders=(holder,), since=since)
    views[1] = msgspec.structs.replace(views[1], health="Unhealthy", reason="TemperatureHigh")
    seen = dataclasses.replace(_GOOD, gpus=msgspec.structs.replace(_LISTING, gpus=tuple(views)))
    found = [item for item in machine_checks.check(seen) if item.check == "gpus"]
    assert [item.what.split(" ")[1] for item in found] == ["1", "6"]
    assert "since 5m" in found[1].what
    assert "default/train has it" in found[1].why
    assert "reboot" in found[1].fix


def test_what_a_simulated_gpu_needs_is_the_command_that_recovers_it() -> None:
    seen = dataclasses.replace(_GOOD, gpus=msgspec.structs.replace(_ill(3, "XID48"), is_simulated=True))
    (item,) = (item for item in machine_checks.check(seen) if item.check == "gpus")
    assert "fairlead simulate fault recover -g 3" in item.fix


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("VerifyBaselineMissing", "fairlead lease baseline list"),
        ("VerifySecondApprovalMissing", "another person"),
        ("VerifyFirmwareMismatch", "fairlead lease report"),
        ("LeaseQuarantined", "fairlead lease release GPU-"),
        ("DeviceStillOpen", "processes that have it open"),
    ],
)
def test_a_gpu_that_the_ledger_keeps_back_needs_no_reset(reason: str, step: str) -> None:
    seen = dataclasses.replace(_GOOD, gpus=msgspec.structs.replace(_ill(3, reason), is_simulated=True))
    (item,) = (item for item in machine_checks.check(seen) if item.check == "gpus")
    assert step in item.fix
    assert "reset" not in item.fix
    assert "simulate" not in item.fix


def test_a_stopped_process_is_named_with_the_signal_that_lets_it_go_on() -> None:
    kubelet = machine_facts.Kubelet(socket=Path("/k"), peer=_STOPPED, problem="it has not answered for 3 s")
    frozen = dataclasses.replace(_GOOD, kubelet=kubelet)
    (item,) = (item for item in machine_checks.check(frozen) if item.level == "fail")
    assert "kill -CONT 7" in item.fix
    silent = dataclasses.replace(_GOOD, service="", service_error="it took longer than 10 s", server=_STOPPED)
    (item,) = (item for item in machine_checks.check(silent) if item.level == "fail")
    assert (item.check, "kill -CONT 7" in item.fix) == ("service", True)


def test_equal_failures_of_several_devices_are_one_finding() -> None:
    failures = tuple((f"a/b={name}", f"no CDI spec defines a/b={name}") for name in "xyz")
    cdi = dataclasses.replace(_CDI, resolved=(), failures=failures)
    (item,) = (item for item in machine_checks.check(dataclasses.replace(_GOOD, cdi=cdi)) if item.level == "fail")
    assert "a/b=x and 2 more" in item.what


def test_gpus_of_claims_are_missed_neither_at_a_plugin_nor_under_their_own_names_in_a_spec() -> None:
    node = msgspec.structs.replace(_NODE, capacity={"cpu": "4"}, allocatable={"cpu": "4"})
    for has_door, levels in ((False, ["fail"]), (True, [])):
        seen = dataclasses.replace(_GOOD, nodes=(node,), has_claims_door=has_door)
        assert [one.level for one in machine_checks.check(seen) if one.check == "plugin"] == levels
    holder = Holder(device="GPU-0", namespace="default", container="train", claim="gpus")
    views = (msgspec.structs.replace(_GPUS[0], holders=(holder,)), *_GPUS[1:])
    assert "fairlead.dev/gpu=GPU-0" not in machine_facts.offered(msgspec.structs.replace(_LISTING, gpus=views))


def test_a_gpu_that_the_ledger_gives_to_nobody_is_not_missed_in_a_spec(tmp_path: Path) -> None:
    views = [msgspec.structs.replace(one, lease="Held" if one.gpu.index < 2 else "Free") for one in _GPUS]
    held = machine_facts.offered(msgspec.structs.replace(_LISTING, gpus=tuple(views)))
    assert held == ["fairlead.dev/gpu=GPU-0", "fairlead.dev/gpu=GPU-1"]
    assert len(machine_facts.offered(_LISTING)) == 8
    seen = dataclasses.replace(_GOOD, cdi=dataclasses.replace(_CDI, resolved=(), withheld=8))
    (item,) = (item for item in machine_checks.check(seen) if item.check == "cdi")
    assert (item.level, "8 GPUs have no entry" in item.what) == ("ok", True)


def test_without_a_service_a_missing_spec_is_no_fault() -> None:
    seen = dataclasses.replace(_GOOD, service="", service_error="none", cdi=dataclasses.replace(_CDI, resolved=()))
    assert {item.level for item in machine_checks.check(seen) if item.check == "cdi"} == {"ok"}


def test_a_spec_of_another_boot_is_a_warning_with_its_remedy() -> None:
    stale = ("/cdi/nvidia.json was generated in another boot (a, this is b)",)
    seen = dataclasses.replace(_GOOD, cdi=dataclasses.replace(_CDI, stale=stale))
    (finding,) = (item for item in machine_checks.check(seen) if item.level == "warn")
    assert (finding.check, "another boot" in finding.what, "generate" in finding.fix) == ("cdi", True, True)


def test_a_device_that_two_files_define_is_a_failure_with_both_files_and_the_commands() -> None:
    found = conflict.Conflict(
        path="/var/run/cdi/fairlead.dev-gpu.json",
        other="/var/run/cdi/nvidia.yaml",
        devices=("fairlead.dev/gpu=GPU-0", "fairlead.dev/gpu=GPU-1"),
    )
    seen = dataclasses.replace(_GOOD, cdi=dataclasses.replace(_CDI, conflicts=(found,)))
    failures = [item for item in machine_checks.check(seen) if item.level == "fail"]
    (item,) = failures
    assert item.check == "cdi"
    assert "fairlead.dev/gpu=GPU-0 and 1 more is defined in" in item.what
    assert found.path in item.what
    assert found.other in item.what
    assert "systemctl disable --now nvidia-cdi-refresh.path" in item.fix
    assert "mv /var/run/cdi/nvidia.yaml /var/run/cdi/nvidia.yaml.before" in item.fix


def test_an_engine_that_does_not_do_what_was_configured_fails() -> None:
    place = ("containerd", "/etc/containerd/config.toml")
    for verdict, level, words in (
        (judge.Verdict(findings=("no handler",)), "fail", "no handler"),
        (judge.Verdict(notes=("it reads another",)), "warn", "it reads another"),
        (judge.Verdict(), "ok", "containerd is configured"),
    ):
        seen = dataclasses.replace(_GOOD, configured={place: verdict})
        first = next(item for item in machine_checks.check(seen) if item.check == "runtime")
        assert (first.level, words in first.what) == (level, True)


def test_a_refused_configuration_is_why_no_plugin_has_registered() -> None:
    bare = msgspec.structs.replace(_NODE, capacity={"cpu": "4"}, allocatable={"cpu": "4"})
    refused = 'configuration refused: configuration "nope" is not there (there: a100)'
    seen = dataclasses.replace(_GOOD, nodes=(bare,), config_problem=refused)
    (found,) = (one for one in machine_checks.check(seen) if one.check == "plugin")
    assert (found.level, found.why) == ("fail", refused)


def test_a_vendors_spec_that_names_what_is_gone_is_warned_of() -> None:
    gone = "/etc/cdi/nvidia.yaml mounts /usr/lib/libcuda.so.560, which is not there"
    seen = dataclasses.replace(_GOOD, cdi=dataclasses.replace(_CDI, gone=(gone,)))
    assert gone in [one.what for one in machine_checks.check(seen) if one.level == "warn"]


def test_a_folder_that_others_may_enter_is_a_failure_and_is_found_on_the_disk(tmp_path: Path) -> None:
    config = settings.override(settings.Settings(), {"state.folder": tmp_path / "state", "state.run": tmp_path / "run"})
    (tmp_path / "state" / "pods").mkdir(parents=True, mode=0o755)
    (tmp_path / "run").mkdir(mode=0o755)
    found = machine_facts._open_folders(config, tmp_path / "state", tmp_path / "run")
    assert [str(tmp_path / "state") in text for text in found] == [True, True]
    judged = [
        one for one in machine_checks.check(dataclasses.replace(_GOOD, open_folders=found)) if one.check == "state"
    ]
    assert [(one.level, "mode 0755" in one.what) for one in judged[:2]] == [("fail", True)] * 2
    for folder in (tmp_path / "state", tmp_path / "state" / "pods"):
        folder.chmod(0o700)
    assert machine_facts._open_folders(config, tmp_path / "state", tmp_path / "run") == ()
