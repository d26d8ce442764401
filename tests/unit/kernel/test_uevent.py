"""The kernel's messages about devices, read with limits; a real one is heard where the kernel lets root ask for it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.kernel import uevent

_REMOVED = (
    b"remove@/devices/pci0000:00/0000:00:01.0/0000:01:00.0\0ACTION=remove\0"
    b"DEVPATH=/devices/pci0000:00/0000:00:01.0/0000:01:00.0\0SUBSYSTEM=pci\0PCI_SLOT_NAME=0000:01:00.0\0SEQNUM=9\0"
)


def test_a_message_is_an_action_a_path_and_fields() -> None:
    found = uevent.parse(_REMOVED)
    assert found is not None
    assert (found.action, found.path) == ("remove", "/devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    assert found.fields["PCI_SLOT_NAME"] == "0000:01:00.0"


@pytest.mark.parametrize(
    "message",
    [b"", b"\0", b"libudev\0\xfe\xed\xca\xfe", b"remove", b"@/devices", b"re move@/x", b"add@x", b"\xff\xfe@/x\0"],
)
def test_what_is_no_message_of_the_kernels_is_passed_over(message: bytes) -> None:
    assert uevent.parse(message) is None


@given(st.binary(max_size=4096))
def test_no_bytes_end_the_reader(message: bytes) -> None:
    found = uevent.parse(b"add@/devices/x\0" + message)
    assert found is not None
    assert all(len(value) <= 512 for value in found.fields.values())


def test_a_field_that_comes_twice_keeps_its_first_value_and_a_long_one_is_cut() -> None:
    found = uevent.parse(b"add@/x\0A=1\0A=2\0B=" + b"b" * 4000 + b"\0=3\0C\0")
    assert found is not None
    assert found.fields == {"A": "1", "B": "b" * 512}


async def _first(action: str) -> uevent.UEvent:
    async for event in uevent.watch():
        if event.path == "/devices/virtual/mem/null" and event.action == action:
            return event
    raise AssertionError("the watch ended")


@pytest.mark.skipif(not os.access("/sys/class/mem/null/uevent", os.W_OK), reason="the kernel takes no request for one")
async def test_the_kernels_own_message_is_heard() -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        heard = tasks.create_task(_first("change"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(Path("/sys/class/mem/null/uevent").write_text, "change")
    assert heard.result().fields["SUBSYSTEM"] == "mem"


async def test_a_message_of_another_process_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [(_REMOVED, 4711), (_REMOVED.replace(b"remove", b"add"), 0)]

    async def receive(*_: object) -> tuple[bytes, int]:
        return said.pop(0)

    monkeypatch.setattr(uevent, "_receive", receive)
    watch = uevent.watch()
    assert (await anext(watch)).action == "add"
    await watch.aclose()  # type: ignore[attr-defined]


async def test_lost_messages_are_said_and_the_watch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[OSError | tuple[bytes, int]] = [OSError(errno.ENOBUFS, "No buffer space available"), (_REMOVED, 0)]

    async def receive(*_: object) -> tuple[bytes, int]:
        one = said.pop(0)
        if isinstance(one, OSError):
            raise one
        return one

    monkeypatch.setattr(uevent, "_receive", receive)
    watch = uevent.watch()
    assert await anext(watch) is uevent.LOST
    assert (await anext(watch)).action == "remove"
    await watch.aclose()  # type: ignore[attr-defined]


async def test_a_machine_that_lets_nobody_listen_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(errors.Unavailable, match="cannot be heard: Operation not permitted"):
        uevent.open_socket()
