"""Every label name of NVIDIA's feature discovery, held against what nodes of each kind get from us.

Source: NVIDIA GPU feature discovery, README, "Generated Labels", "MIG 'single' strategy", "MIG 'mixed' strategy".
"""

from __future__ import annotations

import msgspec

from fairlead.plan.gpu import label
from fairlead.plan.mig import label as miglabel
from tests.unit.plan.gpu.test_label import H100
from tests.unit.plan.mig.test_mig_label import gpu

_GPU = [
    "cuda.driver-version.full",
    "cuda.driver-version.major",
    "cuda.driver-version.minor",
    "cuda.driver-version.revision",
    "cuda.runtime-version.full",
    "cuda.runtime-version.major",
    "cuda.runtime-version.minor",
    "cuda.driver.major",
    "cuda.driver.minor",
    "cuda.driver.rev",
    "cuda.runtime.major",
    "cuda.runtime.minor",
    "gfd.timestamp",
    "gpu.machine",
    "gpu.count",
    "gpu.replicas",
    "gpu.sharing-strategy",
    "gpu.product",
    "gpu.memory",
    "gpu.family",
    "gpu.compute.major",
    "gpu.compute.minor",
    "gpu.mode",
    "gpu.clique",
    "mig.capable",
    "mps.capable",
    "mig.strategy",
    "vgpu.present",
    "vgpu.host-driver-version",
    "vgpu.host-driver-branch",
]
_DEVICE = [
    "count",
    "replicas",
    "sharing-strategy",
    "product",
    "memory",
    "multiprocessors",
    "slices.gi",
    "slices.ci",
    "engines.copy",
    "engines.decoder",
    "engines.encoder",
    "engines.jpeg",
    "engines.ofa",
]


def test_every_name_of_feature_discovery_is_one_that_we_write() -> None:
    lent = msgspec.structs.replace(
        H100, virtual="true", host_driver_version="580.95.02", host_driver_branch="r581_36", clique="5f1c.7"
    )
    found = label.plan_labels([lent], machine="DGX H100")
    found |= miglabel.plan_mig_labels([gpu(0, "1g.5gb")], "mixed")
    found |= label.plan_extras(found, started=1_767_225_600, has_aliases=True)
    wanted = {f"nvidia.com/{name}" for name in (*_GPU, *(f"mig-1g.5gb.{name}" for name in _DEVICE))}
    assert wanted - found.keys() == set()


def test_the_single_strategy_has_the_devices_names_in_place_of_the_gpus() -> None:
    found = miglabel.plan_mig_labels([gpu(0, "1g.5gb")], "single")
    assert {f"nvidia.com/gpu.{name}" for name in _DEVICE} - found.keys() == set()


def test_aliases_have_the_values_of_their_labels() -> None:
    found = label.plan_labels([H100], machine="")
    extras = label.plan_extras(found, started=None, has_aliases=True)
    assert extras == {"gpu-count": "1", "gpu-memory": "81559", "gpu-generation": "hopper"}
