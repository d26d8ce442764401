"""The linker cache: round trips, damage, and glibc's own ldconfig as judge in both directions."""

from __future__ import annotations

import contextlib
import re
import struct
import subprocess
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from fairlead import errors
from fairlead.wire.text import ldcache

NAMES = strategies.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789.-_+", min_size=1, max_size=30)
ENTRIES = strategies.builds(
    lambda soname, folder, flags: ldcache.Entry(soname=soname, path=f"/{folder}/{soname}", flags=flags),
    NAMES,
    NAMES,
    strategies.sampled_from([0x0303, 0x0003, 0x0A03, 0x0903, 0x0803, 0x0503, 0x0000]),
)
CUDA = ldcache.Entry(soname="libcuda.so.1", path="/usr/lib/x86_64-linux-gnu/libcuda.so.1")
LDCONFIG = Path("/sbin/ldconfig")


@hypothesis.given(strategies.lists(ENTRIES, max_size=20))
def test_what_is_emitted_is_parsed_again(entries: list[ldcache.Entry]) -> None:
    assert ldcache.parse_ldcache(ldcache.emit_ldcache(entries)) == tuple(entries)


@hypothesis.given(strategies.integers(min_value=0, max_value=9))
def test_an_old_table_in_front_is_skipped_whatever_its_length(count: int) -> None:
    old = struct.pack("<12sI", ldcache.OLD_MAGIC, count) + b"\xff" * 12 * count
    padding = b"\0" * (-len(old) % 8)
    assert ldcache.parse_ldcache(old + padding + ldcache.emit_ldcache([CUDA])) == (CUDA,)


@hypothesis.given(strategies.binary(max_size=200))
def test_any_bytes_give_entries_or_a_protocol_error(data: bytes) -> None:
    for blob in (data, ldcache.NEW_MAGIC + data, ldcache.OLD_MAGIC + data):
        with contextlib.suppress(errors.ProtocolError):
            assert all(isinstance(entry.path, str) for entry in ldcache.parse_ldcache(blob))


def test_every_truncation_is_noticed() -> None:
    whole = ldcache.emit_ldcache([CUDA])
    for length in range(len(whole)):
        with pytest.raises(errors.ProtocolError):
            ldcache.parse_ldcache(whole[:length])


def test_a_big_endian_cache_is_refused() -> None:
    whole = bytearray(ldcache.emit_ldcache([CUDA]))
    whole[28] = 3
    with pytest.raises(errors.ProtocolError, match="byte order 3"):
        ldcache.parse_ldcache(bytes(whole))


@pytest.mark.skipif(not LDCONFIG.exists(), reason="no ldconfig on this machine")
def test_ldconfig_reads_what_we_emit(tmp_path: Path) -> None:
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(ldcache.emit_ldcache([CUDA]))
    printed = subprocess.run([LDCONFIG, "-p", "-C", cache], check=True, capture_output=True, text=True).stdout
    assert "1 libs found" in printed
    assert "libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1" in printed


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="no linker cache on this machine")
def test_we_read_this_machines_cache_as_ldconfig_does() -> None:
    printed = subprocess.run([LDCONFIG, "-p"], check=True, capture_output=True, text=True).stdout
    theirs = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", printed, re.MULTILINE)
    ours = [(e.soname, e.path) for e in ldcache.parse_ldcache(Path("/etc/ld.so.cache").read_bytes())]
    assert ours == theirs
