"""What a container uses, read from inside it: both versions of cgroups, and files that are not there."""

from __future__ import annotations

import subprocess

from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.engine import containeruse
from fairlead.engine.access import Usage

_NETWORK = (
    b"@/proc/net/dev\nInter-|   Receive    |  Transmit\n face |bytes    packets|bytes    packets\n"
    b"    lo:    1000  10 0 0 0 0 0 0    1000  10 0 0 0 0 0 0\n"
    b"  eth0:    2000  20 0 0 0 0 0 0     300   3 0 0 0 0 0 0\n"
)
_TWO = (
    b"@/sys/fs/cgroup/cpu.stat\nusage_usec 1500\nuser_usec 1000\n@/sys/fs/cgroup/memory.current\n4096\n"
    b"@/sys/fs/cgroup/memory.max\nmax\n@/sys/fs/cgroup/memory.stat\nanon 1\ninactive_file 96\n"
    b"@/sys/fs/cgroup/pids.current\n3\n"
)
_ONE = (
    b"@/sys/fs/cgroup/cpuacct/cpuacct.usage\n1500000\n@/sys/fs/cgroup/memory/memory.usage_in_bytes\n4096\n"
    b"@/sys/fs/cgroup/memory/memory.limit_in_bytes\n8192\n"
    b"@/sys/fs/cgroup/memory/memory.stat\ninactive_file 1\ntotal_inactive_file 96\n"
    b"@/sys/fs/cgroup/pids/pids.current\n3\n"
)


def test_both_versions_of_cgroups_say_the_same() -> None:
    used = Usage(
        cpu_ns=1_500_000,
        memory_bytes=4000,
        memory_limit_bytes=None,
        processes=3,
        received_bytes=2000,
        sent_bytes=300,
    )
    assert containeruse.parse(_TWO + _NETWORK) == used
    one = containeruse.parse(_ONE)
    assert (one.cpu_ns, one.memory_bytes, one.memory_limit_bytes, one.processes) == (1_500_000, 4000, 8192, 3)


def test_what_is_not_there_is_not_known() -> None:
    assert containeruse.parse(b"") == Usage(
        cpu_ns=None,
        memory_bytes=None,
        memory_limit_bytes=None,
        processes=None,
        received_bytes=None,
        sent_bytes=None,
    )


@example(b"\x1f", 204)  # blank to str.strip(), not to int()
@given(st.binary(max_size=200), st.integers(0, 400))
def test_whatever_a_container_answers_is_read_or_left_out(noise: bytes, at: int) -> None:
    whole = _TWO + _NETWORK
    assert isinstance(containeruse.parse(whole[:at] + noise + whole[at:]), Usage)


def test_a_number_of_thousands_of_digits_is_not_known() -> None:
    digits = b"9" * 5000
    said = containeruse.parse(
        b"@/sys/fs/cgroup/pids.current\n%b\n@/sys/fs/cgroup/cpu.stat\nusage_usec %b\n" % (digits, digits)
    )
    assert (said.processes, said.cpu_ns) == (None, None)


def test_the_command_reads_what_this_machine_has() -> None:
    done = subprocess.run(containeruse.COMMAND, capture_output=True, check=True)
    assert containeruse.parse(done.stdout).received_bytes is not None
