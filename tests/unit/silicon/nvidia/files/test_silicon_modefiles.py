"""What each mode finds on a machine, and the spec that comes of it, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.driver import ModeFiles
from fairlead.plan.cdi import driverprofile, generate, source
from fairlead.silicon.nvidia.files import driver, modefiles
from fairlead_cdi import emit, lint
from tests.unit.silicon.nvidia.files import moderoot

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return moderoot.build(tmp_path / "root")


def scan(name: str, root: Path, **more: object) -> ModeFiles:
    return modefiles.scan(name, modefiles.Place(root=root, **more))  # type: ignore[arg-type]


def test_every_mode_without_a_vendor_has_a_finder_and_a_golden_file() -> None:
    wanted = {name for name, row in source.MODES.items() if row.vendor is None}
    assert set(modefiles.FINDERS) == wanted == {path.stem for path in GOLDEN.glob("*.json")}


@pytest.mark.parametrize("name", modefiles.FINDERS)
def test_the_spec_of_a_mode_is_what_it_was(name: str, root: Path) -> None:
    spec = source.mode_spec(name, scan(name, root), generate.Recipe())
    assert spec is not None
    made = emit.emit_json(spec).decode().replace(str(root), "/ROOT")
    assert made == (GOLDEN / f"{name}.json").read_text()


@pytest.mark.parametrize("name", modefiles.FINDERS)
def test_a_mode_finds_nothing_on_an_empty_machine_and_writes_nothing(name: str, tmp_path: Path) -> None:
    assert source.mode_spec(name, scan(name, tmp_path), generate.Recipe()) is None


@pytest.mark.parametrize("name", sorted(set(modefiles.FINDERS) - {"management"}))
def test_no_mode_but_the_owners_gives_a_tenant_anything_dangerous(name: str, root: Path) -> None:
    spec = source.mode_spec(name, scan(name, root), generate.Recipe())
    assert spec is not None
    assert [found for found in lint.lint(spec) if found.severity is lint.Severity.ERROR] == []
    assert {node.permissions for device in spec.devices for node in device.edits.device_nodes} == {"rw"}


def test_every_mode_has_a_class_of_its_own_but_the_three_ways_to_nvidias_gpus() -> None:
    kinds = [row.kind for name, row in source.MODES.items() if name not in {"wsl", "csv"}]
    assert len(kinds) == len(set(kinds))
    assert {source.MODES[name].kind for name in ("nvml", "wsl", "csv")} == {"nvidia.com/gpu"}


def test_imex_channels_beyond_the_last_are_none(root: Path) -> None:
    assert [device.names for device in scan("imex", root).devices] == [("0",), ("2",)]


def test_vfio_names_boards_by_position_address_and_group_and_tells_what_is_missing(root: Path) -> None:
    found = scan("vfio", root)
    names = [("0", "0000:41:00.0", "group12"), ("1", "0000:42:00.0"), ("2", "0000:61:00.0", "group13")]
    assert [device.names for device in found.devices] == names
    assert [[n.path for n in device.nodes] for device in found.devices] == [
        ["/dev/vfio/12"],
        ["/dev/vfio/12"],
        ["/dev/vfio/devices/vfio3", "/dev/iommu"],
    ]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("0000:81:00.0 is left out")


def test_a_windows_machine_without_its_driver_store_is_told(root: Path) -> None:
    (root / moderoot.STORE / "libcuda.so.1.1").unlink()
    found = scan("wsl", root)
    assert (found.devices, len(found.problems)) == ((), 1)


def test_tegras_lists_can_be_chosen_and_thinned(root: Path) -> None:
    found = scan("csv", root, csv_files=(Path("/") / moderoot.CSV / "devices.csv",), csv_ignored=("/dev/nvmap",))
    assert [node.path for node in found.devices[0].nodes] == ["/dev/nvhost-gpu"]
    assert (found.files, found.problems) == (
        (),
        ("/dev/nvhost-gone is left out: the list names it, but it is not there",),
    )


def test_a_malformed_list_is_told_with_its_name(root: Path) -> None:
    path = moderoot.write(root / moderoot.CSV / "l4t.csv", "dev /dev/nvmap\n")
    with pytest.raises(errors.ProtocolError, match=f"{path}: line 1"):
        scan("csv", root)


def test_a_link_of_a_list_that_leads_out_of_the_root_is_not_followed(root: Path) -> None:
    (root / moderoot.LIB / "libout.so.1").symlink_to("/etc/hostname")
    moderoot.write(root / moderoot.CSV / "l4t.csv", f"sym, /{moderoot.LIB}/libout.so.1\n")
    assert not any("libout" in file.path for file in scan("csv", root).files)


def test_nodes_can_be_elsewhere_than_the_rest(root: Path, tmp_path: Path) -> None:
    (root / "run/nvidia/driver").mkdir(parents=True)
    (root / "dev").rename(root / "run/nvidia/driver/dev")
    found = scan("gdrcopy", root, search=driver.Search(dev_root=Path("/run/nvidia/driver")))
    (node,) = found.devices[0].nodes
    assert (node.path, node.host_path) == ("/dev/gdrdrv", f"{root}/run/nvidia/driver/dev/gdrdrv")


@pytest.mark.parametrize(
    ("files", "platform"),
    [
        (("usr/lib/wsl/lib/libdxcore.so", "etc/nv_tegra_release"), "wsl"),
        (("etc/nv_tegra_release",), "csv"),
        (("etc/nv_tegra_release", f"{moderoot.LIB}/libnvidia-ml.so.1"), "nvml"),
        (("etc/nv_tegra_release", f"{moderoot.LIB}/libnvidia-ml.so.1", "sys/module/nvgpu/version"), "csv"),
        ((), "nvml"),
    ],
)
def test_the_platform_is_told_by_its_files(files: tuple[str, ...], platform: str, tmp_path: Path) -> None:
    for name in files:
        moderoot.write(tmp_path / name)
    assert modefiles.detect_platform(tmp_path) == platform


def test_the_owners_mode_shows_all_whatever_the_profile(root: Path) -> None:
    found = scan("management", root)
    spec = source.mode_spec("management", found, generate.Recipe(profile=driverprofile.TENANT))
    assert spec is not None
    paths = {node.path for node in spec.devices[0].edits.device_nodes}
    assert {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0"} <= paths
    assert not any("nvswitch" in path or "nvidia-fs" in path for path in paths)
    assert "/usr/bin/nvidia-persistenced" in {mount.container_path for mount in spec.edits.mounts}


def test_auto_is_the_platform_and_the_other_vendors() -> None:
    assert source.chosen((), "wsl") == ("wsl", "amd", "intel")
    assert source.chosen(("gds", "auto", "gds"), "nvml") == ("gds", "nvml", "amd", "intel")
    assert source.chosen(("imex",), "nvml") == ("imex",)


def test_devices_of_a_mode_can_be_chosen(root: Path) -> None:
    spec = source.mode_spec("imex", scan("imex", root), generate.Recipe(devices=frozenset({"2"})))
    assert spec is not None
    assert [device.name for device in spec.devices] == ["2", "all"]
