"""Feature discovery's labels of MIG devices: names, values, and what Kubernetes takes."""

from __future__ import annotations

import re

from fairlead.model.gpu import GPU, MIGEngines
from fairlead.model.ids import MIGUUID
from fairlead.plan.mig import label
from tests import gpus

ENGINES = MIGEngines(multiprocessors=14, instance_slices=1, slices=1, copy=1, decoder=0, encoder=0, jpeg=0, ofa=0)
VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
KEY = re.compile(r"nvidia\.com/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def gpu(index: int, *profiles: str, is_mig: bool = True) -> GPU:
    parts = (
        gpus.part(place, profile, uuid=MIGUUID(f"MIG-{index}-{place}"), memory_bytes=4864 << 20, engines=ENGINES)
        for place, profile in enumerate(profiles)
    )
    return gpus.gpu(index, name="NVIDIA A100-SXM4-40GB", mig_enabled=is_mig, mig_devices=tuple(parts))


def test_none_says_only_the_strategy() -> None:
    assert label.plan_mig_labels([gpu(0, "1g.5gb")], "none") == {"nvidia.com/mig.strategy": "none"}
    assert label.plan_mig_labels([], "mixed") == {}


def test_mixed_has_a_set_of_labels_for_each_profile() -> None:
    found = label.plan_mig_labels([gpu(0, "1g.5gb", "1g.5gb", "1g.5gb+me"), gpu(1, is_mig=False)], "mixed")
    start = "nvidia.com/mig-1g.5gb"
    assert {name.removeprefix(start): value for name, value in found.items() if name.startswith(f"{start}.c")} == {
        ".count": "2"
    }
    assert {name: value for name, value in found.items() if ".5gb." in name and ".me." not in name} == {
        f"{start}.count": "2",
        f"{start}.replicas": "1",
        f"{start}.sharing-strategy": "none",
        f"{start}.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
        f"{start}.memory": "4864",
        f"{start}.multiprocessors": "14",
        f"{start}.slices.gi": "1",
        f"{start}.slices.ci": "1",
        f"{start}.engines.copy": "1",
        f"{start}.engines.decoder": "0",
        f"{start}.engines.encoder": "0",
        f"{start}.engines.jpeg": "0",
        f"{start}.engines.ofa": "0",
    }
    assert found["nvidia.com/mig-1g.5gb.me.count"] == "1"
    assert "nvidia.com/gpu.replicas" not in found


def test_mixed_where_every_gpu_is_partitioned_leaves_none_whole() -> None:
    assert label.plan_mig_labels([gpu(0, "1g.5gb")], "mixed")["nvidia.com/gpu.replicas"] == "0"


def test_single_speaks_of_devices_as_gpus() -> None:
    found = label.plan_mig_labels([gpu(0, "3g.20gb", "3g.20gb"), gpu(1, "3g.20gb")], "single")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.memory"]) == ("3", "4864")
    assert found["nvidia.com/gpu.slices.gi"] == "1"


def test_single_that_is_not_uniform_is_invalid_with_nothing_to_have() -> None:
    found = label.plan_mig_labels([gpu(0, "3g.20gb", "1g.5gb")], "single")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert {found[f"nvidia.com/gpu.{name}"] for name in ("count", "replicas", "memory")} == {"0"}


def test_every_name_and_value_is_one_that_kubernetes_takes() -> None:
    for strategy in ("none", "single", "mixed"):
        found = label.plan_mig_labels([gpu(0, "1g.24gb+me.all", "1c.3g.20gb", "1g.24gb-me")], strategy)
        assert all(KEY.fullmatch(name) and VALUE.fullmatch(value) for name, value in found.items())
