"""Network cards on a GPU's PCIe switch, from the kernel's device tree."""

from __future__ import annotations

from pathlib import Path

from fairlead.silicon.pci import pci

_SWITCH = "pci0000:07/0000:07:01.0/0000:08:00.0"


def _device(root: Path, address: str, below: str) -> None:
    real = root / "sys/devices" / below / address
    real.mkdir(parents=True)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / address).symlink_to(real)


def _card(root: Path, name: str, address: str) -> None:
    folder = root / "sys/class/infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(root / "sys/bus/pci/devices" / address)


def test_cards_on_the_same_switch_are_near_and_those_of_other_switches_are_not(tmp_path: Path) -> None:
    _device(tmp_path, "0000:0a:00.0", f"{_SWITCH}/0000:09:02.0")
    _device(tmp_path, "0000:0b:00.0", f"{_SWITCH}/0000:09:03.0")
    _device(tmp_path, "0000:0c:00.0", f"{_SWITCH}/0000:09:04.0")
    _device(tmp_path, "0000:2a:00.0", "pci0000:27/0000:27:01.0/0000:28:00.0/0000:29:01.0")
    for name, address in (("mlx5_1", "0000:0c:00.0"), ("mlx5_0", "0000:0b:00.0"), ("mlx5_9", "0000:2a:00.0")):
        _card(tmp_path, name, address)
    assert pci.list_near_nics(tmp_path, "0000:0a:00.0") == ("mlx5_0", "mlx5_1")


def test_a_machine_without_rdma_has_no_near_cards(tmp_path: Path) -> None:
    _device(tmp_path, "0000:0a:00.0", f"{_SWITCH}/0000:09:02.0")
    assert pci.list_near_nics(tmp_path, "0000:0a:00.0") == ()


def test_a_card_whose_place_is_not_known_is_not_near(tmp_path: Path) -> None:
    _device(tmp_path, "0000:0a:00.0", f"{_SWITCH}/0000:09:02.0")
    (tmp_path / "sys/class/infiniband/siw0").mkdir(parents=True)  # a software device: it has no PCI device
    assert pci.list_near_nics(tmp_path, "0000:0a:00.0") == ()
