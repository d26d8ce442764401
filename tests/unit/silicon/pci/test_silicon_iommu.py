"""IOMMU groups: who is in one, who keeps it from being passed on, and what the generator makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.silicon import running
from fairlead.silicon.nvidia.files import modefiles
from fairlead.silicon.pci import iommu
from tests.unit.silicon.nvidia.files import moderoot

GPU, SIBLING = "0000:a1:00.0", "0000:a1:00.1"
AUDIO = ("0x1002", "0x040300")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = moderoot.build(tmp_path / "root")
    moderoot.add_pci(made, SIBLING, driver="snd_hda_intel", group="21", ids=AUDIO)
    return made


@pytest.mark.parametrize(
    ("driver", "verdict"),
    [
        ("vfio-pci", True),
        ("nvgrace_gpu_vfio_pci", True),
        ("mlx5_vfio_pci", True),
        ("nvidia", False),
        ("pci-stub", False),
        ("", False),
        (None, False),
    ],
)
def test_the_drivers_of_vfio_are_told_from_others(driver: str | None, verdict: bool) -> None:
    assert iommu.is_vfio(driver) is verdict


def test_a_group_is_all_of_its_functions(root: Path) -> None:
    assert iommu.group_of(root, SIBLING) == "21"
    assert iommu.list_members(root, "21") == [GPU, SIBLING]


def test_where_no_iommu_translates_there_is_no_group(root: Path) -> None:
    moderoot.add_pci(root, "0000:f0:00.0", driver="vfio-pci")
    assert iommu.group_of(root, "0000:f0:00.0") is None
    assert iommu.list_members(root, "99") == []


def test_a_sibling_on_its_own_driver_keeps_the_group_closed(root: Path) -> None:
    assert iommu.list_holders(root, "21") == [(SIBLING, "snd_hda_intel")]


@pytest.mark.parametrize("driver", ["", "vfio-pci", "xe_vfio_pci", "pci-stub", "pcieport"])
def test_a_sibling_that_does_no_dma_of_its_own_does_not(driver: str, root: Path) -> None:
    moderoot.bind(root, SIBLING, driver)
    assert iommu.list_holders(root, "21") == []


def test_a_gpu_whose_group_is_not_viable_is_left_out_and_that_is_said(root: Path) -> None:
    found = modefiles.scan("vfio-amd", modefiles.Place(root=root))
    assert (found.devices, found.shared) == ((), ())
    assert found.problems == (
        f"{GPU} is left out: its IOMMU group 21 is not viable while {SIBLING} is bound to snd_hda_intel; "
        "bind to vfio-pci, or unbind",
    )


def test_a_gpu_whose_sibling_was_unbound_is_there(root: Path) -> None:
    moderoot.bind(root, SIBLING, "")
    found = modefiles.scan("vfio-amd", modefiles.Place(root=root))
    assert ([device.names for device in found.devices], found.problems) == ([("0", GPU, "group21")], ())


@pytest.mark.parametrize(("address", "driver"), [(SIBLING, ""), (SIBLING, "vfio-pci"), (GPU, ""), (GPU, "amdgpu")])
def test_whoever_watches_notices_when_viability_may_have_changed(address: str, driver: str, root: Path) -> None:
    before = running.fingerprint(root, Path("/"))
    assert running.fingerprint(root, Path("/")) == before
    moderoot.bind(root, address, driver)
    assert running.fingerprint(root, Path("/")) != before
