"""Addresses and routes, from files as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.kernel.network import address

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
        +-- 10.213.0.0/20 5 0 22
              |-- 10.213.0.0
                 /24 link UNICAST
              |-- 10.213.0.1
                 /32 host LOCAL
           |-- 10.213.0.255
              /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
Local:
              |-- 10.213.0.1
                 /32 host LOCAL
"""
IF_INET6 = """fe80000000000000d45a59fffee7d2ad 3a3 40 20 80  podman2
fdb9d91c30ce00030000000000000001 a75 40 00 80  podman4
00000000000000000000000000000001 01 80 10 80       lo
"""
ROUTE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
podman2\t0000D50A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
down0\t0000A8C0\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
_NOWHERE = "0" * 32
IPV6_ROUTE = "".join(
    f"{destination} {length} {_NOWHERE} 00 {_NOWHERE} {_NOWHERE} 00000100 00000004 00000000 {flags} {name}\n"
    for destination, length, flags, name in (
        ("fd000000000000000000000000000000", "40", "00000001", "eth0"),
        ("fd317657706700000000000000000000", "40", "00000001", "podman2"),
        ("fd990000000000000000000000000000", "40", "00000003", "eth0"),
        ("fd980000000000000000000000000000", "40", "00000000", "down0"),
        ("fe800000000000000000000000000000", "40", "00000001", "eth0"),
        ("ff000000000000000000000000000000", "08", "00000001", "eth0"),
        (_NOWHERE, "00", "00000001", "eth0"),
        ("0" * 31 + "1", "80", "00000001", "lo"),
    )
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place in ("proc/7/net", "proc/net"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "proc/7/net/fib_trie").write_text(FIB_TRIE)
    (tmp_path / "proc/7/net/if_inet6").write_text(IF_INET6)
    (tmp_path / "proc/net/route").write_text(ROUTE)
    (tmp_path / "proc/net/ipv6_route").write_text(IPV6_ROUTE)
    return tmp_path


def test_a_process_has_addresses_of_both_families_and_loopback_and_links_do_not_count(root: Path) -> None:
    assert address.of_process(7, root=root) == ("10.213.0.1", "fdb9:d91c:30ce:3::1")
    assert address.of_process(8, root=root) == ()


def test_networks_without_a_gateway_are_on_the_link(root: Path) -> None:
    found = address.on_link(root=root)
    assert found == ("192.0.2.0/24", "10.213.0.0/24", "fd00::/64", "fd31:7657:7067::/64")
    assert address.on_link(root=root, without=frozenset({"podman2"})) == ("192.0.2.0/24", "fd00::/64")
    assert address.on_link(root=root / "none") == ()
