"""The guest's end of a Service VM's port: takes one hello, says that it lives, and believes nothing else."""

from __future__ import annotations

import os
import tty
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.silicon.fabric import machineport
from fairlead.wire.fairlead import servicevm

SECRET = b"s\0" * 16


class Port:
    """A character device whose other end is the host's."""

    def __init__(self, stack: ExitStack) -> None:
        self.host, guest = os.openpty()
        tty.setraw(guest)
        self.path = os.ttyname(guest)
        stack.callback(os.close, guest)
        stack.callback(os.close, self.host)


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def test_the_secret_and_where_to_listen_are_taken_and_signs_of_life_count_up(port: Port) -> None:
    guest = machineport.MachinePort(port.path)
    os.write(port.host, servicevm.emit(servicevm.Hello(secret=SECRET.hex(), port=6667)))
    where, secret = guest.wait_hello()
    assert (str(where), secret) == ("4294967295:6667", SECRET)
    guest.beat()
    guest.beat()
    with os.fdopen(os.dup(port.host), "rb") as said:
        assert [servicevm.parse_beat(said.readline()).beat for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"hello\n",
        b'{"version":"fairlead.service-vm/2","secret":"' + b"a" * 64 + b'","port":1}\n',
        b'{"secret":"' + b"a" * 63 + b'","port":1}\n',
        b'{"secret":"' + b"z" * 64 + b'","port":1}\n',
        b'{"secret":"' + b"a" * 64 + b'","port":4294967295}\n',
        b'{"secret":"' + b"a" * 64 + b'","port":1,"listen":"/etc/passwd"}\n',
    ],
)
def test_a_host_that_says_anything_else_is_not_believed_and_its_words_are_not_shown(port: Port, said: bytes) -> None:
    guest = machineport.MachinePort(port.path)
    os.write(port.host, said)
    with pytest.raises(errors.ProtocolError) as caught:
        guest.wait_hello()
    assert "aaaa" not in str(caught.value)


@pytest.mark.parametrize("path", ["/nowhere", "a\0b", "/"])
def test_a_port_that_is_none_is_named(path: str) -> None:
    with pytest.raises(errors.Unavailable, match="cannot be used"):
        machineport.MachinePort(path)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_readers_of_a_service_vms_port(line: bytes) -> None:
    for parse in (servicevm.parse_hello, servicevm.parse_beat):
        try:
            parse(line)
        except errors.ProtocolError:
            continue
