"""What counts as clean, on an HGX board of made-up files whose registers a test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.vfio import Function, Snapshot
from fairlead.node.vfio import reset
from fairlead.plan.vfio import resetting
from fairlead.silicon.vfio import discovery
from tests.unit.silicon.vfio import pcitree

ADDRESS = next(iter(pcitree.HGX_MODULES))
_SCRUBBED = 0x100B20


class Board:
    """One GPU among others, and who resets it."""

    def __init__(self, root: Path) -> None:
        self.tree = pcitree.build_hgx(root, driver="vfio-pci")
        self.folder = self.tree.folder(ADDRESS)
        (self.folder / "reset").touch()
        self.say(scrubbed=1)

    def say(self, *, scrubbed: int) -> None:
        words = {**pcitree.module_registers(5), _SCRUBBED: scrubbed}
        (self.folder / "resource0").write_bytes(pcitree.registers(words, size=0x101000))

    def scan(self) -> tuple[Snapshot, Function]:
        snapshot = discovery.scan(self.tree.root)
        found = snapshot.find(ADDRESS)
        assert found is not None
        return snapshot, found

    async def reset(self, *, needs_erased: bool = True) -> None:
        await reset.Resetter(self.tree.root, needs_erased=needs_erased).reset(*self.scan())


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setattr(resetting, "SCRUB_S", 0.2)
    return Board(tmp_path)


async def test_a_gpu_that_was_reset_by_its_bus_and_says_erased_is_clean(board: Board) -> None:
    await board.reset()
    assert (board.folder / "reset").read_text().strip() == "1"
    assert (board.folder / "reset_method").read_text().split() == ["flr", "bus"], "the kernel's own choice is back"


async def test_a_gpu_that_never_says_erased_is_not_clean(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.say(scrubbed=0)
    plan = resetting.plan_reset
    monkeypatch.setattr(resetting, "plan_reset", lambda *given: plan(*given, scrub_s=0.1))
    with pytest.raises(errors.DeviceFault) as caught:
        await board.reset()
    assert caught.value.reason == reset.NOT_SCRUBBED
    await board.reset(needs_erased=False)


async def test_a_gpu_without_a_bus_reset_is_clean_only_where_a_person_accepts_that(board: Board) -> None:
    (board.folder / "reset_method").write_text("flr\n")
    with pytest.raises(errors.DeviceFault) as caught:
        await board.reset()
    assert caught.value.reason == reset.NOT_WHOLE
    assert "vfio_clean=reset" in (caught.value.hint or "")
    assert (board.folder / "reset").read_text() == "", "nothing was tried"
    await board.reset(needs_erased=False)


async def test_a_gpu_that_nothing_resets_is_never_clean(board: Board) -> None:
    (board.folder / "reset_method").write_text("pm\n")
    with pytest.raises(errors.DeviceFault):
        await board.reset(needs_erased=False)


async def test_a_write_that_the_kernel_refuses_is_said_with_its_file(board: Board) -> None:
    (board.folder / "reset").unlink()
    (board.folder / "reset").mkdir()
    with pytest.raises(errors.DeviceFault) as caught:
        await board.reset()
    assert "EISDIR" in caught.value.message


async def test_a_write_that_never_ends_is_given_up(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reset, "WRITE_S", 0.5)
    (board.folder / "reset").unlink()
    pipe = board.folder / "reset"
    os.mkfifo(pipe)
    with pytest.raises(errors.DeviceFault) as caught:
        await board.reset()
    assert "did not end within 0.5 s" in caught.value.message


async def test_a_gpu_with_virtual_functions_is_not_reset_under_them(board: Board) -> None:
    (board.folder / "sriov_numvfs").write_text("4\n")
    with pytest.raises(errors.Conflict):
        await board.reset()
