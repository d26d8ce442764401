"""Who has a function open: processes that are seen, doubts, and what the kernel says of a group's node."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence

import pytest

from fairlead.model.driver import DeviceNode
from fairlead.model.vfio import Function, FunctionKind, Holder
from fairlead.silicon.vfio import holder
from tests.unit.silicon.vfio.sysfskernel import User

GPU = "0000:0f:00.0"
NULL: holder.Number = ("c", 1, 3)
NODE = DeviceNode(path="/dev/vfio/15", host_path="/dev/null", major=1, minor=3, mode=0o600)
DOUBT = User(pid=9, name="io", doubt="has files registered in an io_uring (3)")
QEMU = User(pid=4242, devices=(NULL,))


def find(*users: User, driver: str = "vfio-pci", is_ours: bool = False, opens: bool = True) -> tuple[Holder, ...]:
    gpu = Function(address=GPU, kind=FunctionKind.GPU, vendor=0x10DE, device=1, driver=driver, group_node=NODE)

    def find_users(numbers: Collection[holder.Number]) -> Sequence[User]:
        assert set(numbers) == {NULL}
        return users

    return holder.find_holders([gpu], find_users, is_ours=is_ours, opens=opens).get(GPU, ())


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Have the group's node refuse to be opened; returns what was opened."""
    opened: list[str] = []

    def refused(path: str, flags: int) -> int:
        assert flags & os.O_CLOEXEC
        opened.append(path)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)
    return opened


def test_a_process_that_is_seen_is_named_with_the_node() -> None:
    for is_ours in (False, True):
        assert find(QEMU, is_ours=is_ours) == (Holder(pid=4242, name="qemu-system-x86", what="/dev/vfio/15"),)


def test_a_group_that_opens_settles_a_doubt() -> None:
    assert find(DOUBT) == ()


def test_a_group_in_use_has_a_holder_even_where_none_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EBUSY)
    assert find() == (Holder(pid=0, name="", what="/dev/vfio/15"),)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENXIO, errno.EPERM])
def test_a_kernel_that_does_not_say_leaves_the_doubt(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse(monkeypatch, number)
    assert [(one.pid, one.is_doubt) for one in find(DOUBT)] == [(9, True)]


def test_looking_opens_nothing_and_neither_does_whoever_has_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = refuse(monkeypatch, errno.EBUSY)
    assert [one.is_doubt for one in find(DOUBT, opens=False)] == [True]
    assert find(DOUBT, is_ours=True) == ()
    assert opened == []


def test_a_doubt_about_a_vendors_driver_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = refuse(monkeypatch, errno.EBUSY)
    assert [one.is_doubt for one in find(DOUBT, driver="nvidia", is_ours=True)] == [True]
    assert opened == []
