"""ELF files as the compiler makes them, and as an attacker does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.inject import rootfs
from fairlead.inject.hook import compat, elf

NOTE = '{"CUDA Version": "13.0", "Driver": ["535", 550]}'


@contextmanager
def opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("elf")
    text = NOTE.replace('"', '\\"')
    (folder / "a.s").write_text(
        '.section .note.cuda.fwd_compatibility,"a",@note\n.align 4\n.long 5\n'
        f'.long {len(NOTE)}\n.long 1\n.asciz "CUDA"\n.align 4\n.ascii "{text}"\n.align 4\n'
    )
    path = folder / "libcuda.so.580.65.06"
    subprocess.run(("gcc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-o", path, folder / "a.s"), check=True)
    return path


def test_soname_and_note_of_a_real_library_are_read(library: Path) -> None:
    with opened(library) as handle:
        assert elf.soname(handle) == "libcuda.so.1"
        assert elf.forward_note(handle) == NOTE


def test_the_hosts_own_libc_has_its_name() -> None:
    found = next(Path("/lib").glob("*-linux-gnu/libc.so.6"), None)
    if found is None:
        pytest.skip("no glibc at Debian's place")
    with opened(found) as handle:
        assert elf.soname(handle) == "libc.so.6"


def test_other_files_have_neither(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for data in (b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01" + b"\0" * 100):
        path.write_bytes(data)
        with opened(path) as handle:
            assert (elf.soname(handle), elf.forward_note(handle)) == (None, None)


@given(place=st.integers(0, 4000), data=st.binary(min_size=1, max_size=16), cut=st.integers(0, 20_000))
def test_no_damage_makes_a_reader_fail(
    library: Path, tmp_path_factory: pytest.TempPathFactory, place: int, data: bytes, cut: int
) -> None:
    good = library.read_bytes()
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes((good[:place] + data + good[place + len(data) :])[:cut])
    with opened(path) as handle:
        name = elf.soname(handle)
        assert name is None or "/" not in name
        elf.forward_note(handle)


def image(folder: Path, library: Path, *names: str) -> rootfs.Root:
    place = folder / "usr/local/cuda/compat"
    place.mkdir(parents=True)
    for name in names:
        shutil.copy(library, place / name)
    return rootfs.Root(str(folder))


@pytest.mark.parametrize(
    ("driver", "needed"),
    [("550.163.01", True), ("535.1", True), ("570.1", False), ("580.65.06", False), ("", False), ("x", False)],
)
def test_the_images_libcuda_is_used_where_it_is_newer_and_knows_the_driver(
    tmp_path: Path, library: Path, driver: str, needed: bool
) -> None:
    root = image(tmp_path, library, "libcuda.so.580.65.06", "libnvidia-nvvm.so.4")
    assert compat.is_needed(root, compat.FOLDER, driver) is needed


def test_without_a_note_the_newer_major_counts(tmp_path: Path) -> None:
    place = tmp_path / "usr/local/cuda/compat"
    place.mkdir(parents=True)
    (place / "libcuda.so.570.1").write_bytes(b"")
    root = rootfs.Root(str(tmp_path))
    assert compat.is_needed(root, compat.FOLDER, "550.1")
    assert not compat.is_needed(root, compat.FOLDER, "570.2")


def test_several_a_link_a_pipe_or_none_are_left_alone(tmp_path: Path, library: Path) -> None:
    two = image(tmp_path / "two", library, "libcuda.so.580.1", "libcuda.so.580.2")
    assert not compat.is_needed(two, compat.FOLDER, "550.1")
    for kind in ("link", "pipe", "none"):
        root = image(tmp_path / kind, library)
        place = tmp_path / kind / "usr/local/cuda/compat/libcuda.so.580.1"
        if kind == "link":
            place.symlink_to(library)
        elif kind == "pipe":
            os.mkfifo(place)
        assert not compat.is_needed(root, compat.FOLDER, "550.1")


def test_a_compat_folder_that_leads_to_the_host_is_not_there(tmp_path: Path, library: Path) -> None:
    """CVE-2024-0132, CVE-2025-23359: the peers followed it, then mounted what they found."""
    host = tmp_path / "host"
    host.mkdir()
    shutil.copy(library, host / "libcuda.so.580.1")
    folder = tmp_path / "rootfs/usr/local/cuda"
    folder.mkdir(parents=True)
    (folder / "compat").symlink_to(host)
    naive = list((tmp_path / "rootfs" / compat.FOLDER.lstrip("/")).glob("libcuda.so.*"))
    assert naive, "the naive look must break, or this shows nothing"
    assert not compat.is_needed(rootfs.Root(str(tmp_path / "rootfs")), compat.FOLDER, "550.1")
