"""Registers of a GPU: its module number and its scrub flag, from files that stand for its first memory region."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fairlead.model.vfio import Function, FunctionKind, ModuleReading, ModuleUnknown
from fairlead.silicon.vfio import discovery, registers
from tests.unit.silicon.vfio import pcitree

GPU = "0000:0f:00.0"
ONES = 0xFFFFFFFF
HOPPER, BLACKWELL, AMPERE = 0x180000A1, 0x1A2000A1, 0x170000A1


class Words(dict[int, int]):
    """Registers in a dictionary; others are 0."""

    def read(self, offset: int) -> int:
        return self.get(offset, 0)


@pytest.fixture
def tree(tmp_path: Path) -> pcitree.Tree:
    tree = pcitree.Tree(tmp_path / "root")
    pcitree.add_gpu(tree, GPU)
    (tree.folder(GPU) / "resource0").write_bytes(pcitree.registers(pcitree.module_registers(5)))
    return tree


def gpu(tree: pcitree.Tree) -> Function:
    return discovery.scan(tree.root).gpus[0]


@pytest.mark.parametrize(
    ("model", "device", "is_card"),
    [
        ("GH100 [H100 SXM5 80GB]", 0x2330, False),
        ("GH100 [H100 PCIe]", 0x2331, True),
        ("GH100 [H100 NVL]", 0x2321, True),
        ("GH100 [H200 SXM 141GB]", 0x2335, False),
        ("GH100 [GH200 120GB / 480GB]", 0x2342, False),
        ("GB100 [B200]", 0x2901, False),
        ("GB110 [B300 SXM6 AC]", 0x3182, False),
        ("GB202GL [RTX PRO 6000 Blackwell Server Edition]", 0x2BB5, True),
        ("GA100 [A100 SXM4 80GB]", 0x20B2, False),
        ("GA100 [A100 PCIe 80GB]", 0x20B5, True),
        ("GA100GL [A30 PCIe]", 0x20B7, True),
        ("GA102GL [A40]", 0x2235, True),
        ("AD102GL [L40S]", 0x26B9, True),
        ("TU104GL [Tesla T4]", 0x1EB8, True),
        ("GV100 [Tesla V100 SXM3 32GB]", 0x1DB8, False),
        ("GP102GL [Tesla P40]", 0x1B38, True),
        ("GR100 [whatever comes]", 0x4000, False),
        ("", 0x9999, False),
        ("AD102GL [L40S]", 0x2330, False),  # a list of ids that lies of a module that is known
    ],
)
def test_only_what_is_known_to_be_on_no_board_with_switches_is_a_card(model: str, device: int, is_card: bool) -> None:
    one = Function(address="0000:01:00.0", kind=FunctionKind.GPU, vendor=0x10DE, device=device, model=model)
    assert registers.is_card(one) is is_card
    assert registers.is_card(dataclasses.replace(one, vendor=0x1002)) is True


def test_each_module_of_an_hgx_board_says_its_number(tmp_path: Path) -> None:
    tree = pcitree.build_hgx(tmp_path / "root", regions=True)
    found = {one.address: registers.read_module(tree.root, one).number for one in discovery.scan(tree.root).gpus}
    assert found == pcitree.HGX_MODULES


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": 0x2901}, ModuleUnknown.GENERATION),
        ({"device": 0x20B2}, ModuleUnknown.GENERATION),
        ({"device": 0x2331}, ModuleUnknown.NOT_SXM),
        ({"vendor": 0x1002}, ModuleUnknown.NOT_SXM),
        ({"subsystem_device": 0x9999}, ModuleUnknown.BOARD),
        ({"subsystem_vendor": 0x1028}, ModuleUnknown.BOARD),
        ({"subsystem_device": None}, ModuleUnknown.BOARD),
    ],
)
def test_a_board_whose_wiring_is_not_known_is_never_guessed(
    tree: pcitree.Tree, changes: dict[str, int], why: ModuleUnknown
) -> None:
    function = dataclasses.replace(gpu(tree), **changes)  # type: ignore[arg-type]
    assert registers.read_module(tree.root, function) == ModuleReading(why=why)


def test_ones_are_no_module_number(tree: pcitree.Tree) -> None:
    function = gpu(tree)
    (tree.folder(GPU) / "resource0").write_bytes(b"\xff" * (1 << 20))
    assert registers.read_module(tree.root, function).why is ModuleUnknown.SILENT


def test_another_chip_than_its_id_says_has_no_known_register(tree: pcitree.Tree) -> None:
    function = gpu(tree)
    words = pcitree.module_registers(5) | {0: AMPERE}
    (tree.folder(GPU) / "resource0").write_bytes(pcitree.registers(words))
    assert registers.read_module(tree.root, function).why is ModuleUnknown.GENERATION


@pytest.mark.parametrize("region", [None, b"", b"\0" * 4096])
def test_a_region_that_is_absent_empty_or_short_is_said(tree: pcitree.Tree, region: bytes | None) -> None:
    function = gpu(tree)
    path = tree.folder(GPU) / "resource0"
    path.unlink() if region is None else path.write_bytes(region)
    found = registers.read_module(tree.root, function)
    assert found.why is ModuleUnknown.UNREADABLE
    assert found.detail


def test_a_gpu_that_fell_off_the_bus_is_not_written_to(tree: pcitree.Tree) -> None:
    function = gpu(tree)
    (tree.folder(GPU) / "config").write_bytes(b"\xff" * 4096)
    assert registers.read_module(tree.root, function).detail == "it does not answer on the bus"
    assert (tree.folder(GPU) / "config").read_bytes() == b"\xff" * 4096


def test_decoding_and_power_are_as_before(tree: pcitree.Tree) -> None:
    folder = tree.folder(GPU)
    config = bytearray((folder / "config").read_bytes())
    config[4] &= ~2
    (folder / "config").write_bytes(config)
    (folder / "power/control").write_text("auto\n")
    with registers.opened(tree.root, GPU) as opened:
        assert opened.read(0) == HOPPER
        assert (folder / "config").read_bytes()[4] & 2
        assert (folder / "power/control").read_text().startswith("on")
    assert (folder / "config").read_bytes() == bytes(config)
    assert (folder / "power/control").read_text().startswith("auto")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({0: HOPPER, 0x100B20: 1}, True),
        ({0: HOPPER, 0x100B20: 0}, False),
        ({0: HOPPER, 0x100B20: ONES}, None),
        ({0: ONES, 0x100B20: 1}, None),
        ({0: BLACKWELL, 0x8A004C: 1}, True),
        ({0: BLACKWELL, 0x100B20: 1}, False),
        ({0: AMPERE, 0x100B20: 1}, None),
        ({0: 0x1B2000A1, 0x8A004C: 1}, None),
    ],
)
def test_only_a_generation_that_erases_by_itself_is_believed(words: dict[int, int], expected: bool | None) -> None:
    assert registers.is_scrubbed(Words(words)) is expected


def test_a_gpu_for_whose_memory_there_was_no_room_says_so(tree: pcitree.Tree) -> None:
    """As after a hot plug into a bridge whose window is full."""
    function = gpu(tree)
    (tree.folder(GPU) / "resource").write_text("0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13)
    found = registers.read_module(tree.root, function)
    assert found.why is ModuleUnknown.UNREADABLE
    assert "no room for its memory" in found.detail
