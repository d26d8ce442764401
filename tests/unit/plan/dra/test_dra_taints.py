"""Taints of offered devices: what is held against their GPU, and nothing longer than it is."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.ids import MIGUUID
from fairlead.plan.dra import offered, taints
from fairlead.plan.dra.taints import Against, Key
from fairlead.plan.gpu import health
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint
from tests.unit.plan.dra import draworld

_GPU = draworld.h100().uuid


def _ill(reason: str) -> health.Verdict:
    return health.Verdict(state=health.State.FAULTY, reason=reason)


def _device(name: str = "gpu-0", instance: str | None = None) -> offered.OfferedDevice:
    mig = MIGUUID(instance) if instance else None
    kind = offered.Kind.MIG if instance else offered.Kind.GPU
    return offered.OfferedDevice(name=name, kind=kind, gpu=_GPU, minor=0, instance=mig)


def _shown(against: Against, effect: str = "") -> list[tuple[str, str, str]]:
    found = taints.plan_taints([_device()], against, taints.choose_effects(effect))
    return [(one.key, one.value, one.effect) for one in found.get("gpu-0", ())]


@pytest.mark.parametrize(
    ("against", "shown"),
    [
        (Against(verdicts={_GPU: _ill("XID79")}), ("gpu.nvidia.com/xid", "79", "NoSchedule")),
        (Against(verdicts={_GPU: _ill("Lost")}), ("gpu.nvidia.com/gpu-lost", "Lost", "NoSchedule")),
        (Against(verdicts={_GPU: _ill("Timeout")}), ("gpu.nvidia.com/gpu-lost", "Timeout", "NoSchedule")),
        (
            Against(verdicts={_GPU: _ill("TemperatureHigh")}),
            ("fairlead.dev/gpu-unhealthy", "TemperatureHigh", "NoSchedule"),
        ),
        (Against(unmonitored={_GPU}), ("gpu.nvidia.com/unmonitored", "", "None")),
        (Against(unverified={_GPU: "Dirty"}), ("fairlead.dev/gpu-unverified", "Dirty", "NoSchedule")),
        (Against(other_doors={_GPU: "plugin"}), ("fairlead.dev/gpu-other-door", "plugin", "NoSchedule")),
    ],
)
def test_what_is_held_against_a_gpu_is_a_taint(against: Against, shown: tuple[str, str, str]) -> None:
    assert _shown(against) == [shown]


@pytest.mark.parametrize("state", [health.State.HEALTHY, health.State.SUSPECT])
def test_a_gpu_that_may_be_handed_out_has_no_taint(state: health.State) -> None:
    assert _shown(Against(verdicts={_GPU: health.Verdict(state=state, reason="TemperatureHigh")})) == []


def test_a_recovering_gpu_is_tainted_still() -> None:
    assert len(_shown(Against(verdicts={_GPU: health.Verdict(state=health.State.RECOVERING, reason="XID48")}))) == 1


def test_the_chosen_effect_is_of_illnesses() -> None:
    against = Against(verdicts={_GPU: _ill("XID79")}, unverified={_GPU: "Dirty"}, unmonitored={_GPU})
    assert [effect for _, _, effect in _shown(against, "NoExecute")] == ["NoExecute", "None", "NoSchedule"]


def test_an_unknown_effect_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="PreferNoSchedule"):
        taints.choose_effects("PreferNoSchedule")


def test_a_mig_device_is_tainted_for_itself_and_for_its_gpu() -> None:
    devices = [_device("a", "MIG-a"), _device("b", "MIG-b")]
    own = taints.plan_taints(devices, Against(device_verdicts={MIGUUID("MIG-a"): _ill("XID94")}))
    of_gpu = taints.plan_taints(devices, Against(verdicts={_GPU: _ill("XID79")}))
    assert (set(own), set(of_gpu)) == ({"a"}, {"a", "b"})


def test_a_partition_that_is_made_is_tainted_for_what_its_mig_device_has() -> None:
    gpu = draworld.h100(mig_enabled=True, mig_devices=(draworld.mig(uuid="MIG-a", start=4),))
    choice = offered.Choice(partitioned={gpu.uuid}, made={MIGUUID("MIG-a")})
    devices = offered.plan_devices(draworld.snapshot_of(gpu), [draworld.partition_of(gpu)], choice)
    against = Against(
        device_verdicts={MIGUUID("MIG-a"): _ill("XID94")},
        standing=taints.find_standing([gpu]),
    )
    assert set(taints.plan_taints(devices, against)) == {"gpu-0-mig-1g10gb-19-4"}


def test_the_health_of_a_mig_device_that_was_made_is_told_before_its_gpus() -> None:
    part = dataclasses.replace(
        _device("part"), kind=offered.Kind.PARTITION, profile="1g.10gb", placement=offered.Placement(start=2, size=1)
    )
    against = Against(
        device_verdicts={MIGUUID("MIG-a"): dataclasses.replace(_ill("XID94"), message="its own")},
        standing={(_GPU, "1g.10gb", 2): MIGUUID("MIG-a")},
    )
    assert taints.find_illness(part, against) == "its own"
    assert taints.find_illness(_device(), against) == ""
    both = dataclasses.replace(against, verdicts={_GPU: _ill("Lost")})
    assert taints.find_illness(part, both) == "its own"
    assert taints.find_illness(_device(), both) == "Lost"


def test_a_hostile_reason_is_a_label_value() -> None:
    ((_, value, _),) = _shown(Against(unverified={_GPU: "x\x00\n" + "y" * 400}))
    assert len(value) <= 63
    assert value.isalnum()


def test_every_key_has_a_usual_effect() -> None:
    assert set(taints.USUAL) == set(Key)


def test_a_time_of_its_own_is_kept() -> None:
    taint = DeviceTaint(key="a", value="b", effect="None", time_added="2026-01-01T00:00:00Z")
    device = Device(name="d", taints=(taint,))
    assert taints.with_times(device, Device(name="d")) == device
