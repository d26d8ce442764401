"""`fairlead image demo`: one line makes an image; a busybox that could not run in it is refused with the fix."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.cli.image import demoimage

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Service

BUSYBOX = shutil.which("busybox")


def elf(bits: int, *types: int) -> bytes:
    """A program of nothing but a header and program headers of these types."""
    header = bytearray(64)
    header[:6] = b"\x7fELF" + bytes([bits // 32, 1])
    size = 56 if bits == 64 else 32
    if bits == 64:
        struct.pack_into("<Q", header, 32, 64)
        struct.pack_into("<HH", header, 54, size, len(types))
    else:
        struct.pack_into("<I", header, 28, 64)
        struct.pack_into("<HH", header, 42, size, len(types))
    return bytes(header) + b"".join(struct.pack("<I", kind).ljust(size, b"\0") for kind in types)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_program_with_a_loader_is_not_static(bits: int) -> None:
    assert demoimage.is_static(elf(bits, 1, 1))
    assert not demoimage.is_static(elf(bits, 1, 3))


@given(st.binary(max_size=200), st.sampled_from((b"", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01", b"#!/bin/sh\n")))
def test_no_file_breaks_the_reading_of_its_header(rest: bytes, start: bytes) -> None:
    assert demoimage.is_static(start + rest) in {True, False}


@pytest.mark.skipif(BUSYBOX is None, reason="needs busybox-static")
def test_the_image_has_every_tool_and_busybox_is_not_a_link_to_itself() -> None:
    with demoimage.root(None) as folder:
        assert not (folder / "bin/busybox").is_symlink()
        assert (folder / "bin/sh").resolve() == (folder / "bin/busybox").resolve()
        assert (folder / "etc/passwd").read_text().startswith("root:")
        assert folder.stat().st_mode & 0o777 == 0o755
    assert not folder.exists()


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", elf(64, 3)])
def test_a_busybox_that_could_not_run_alone_is_refused_with_the_fix(tmp_path: Path, content: bytes) -> None:
    program = tmp_path / "busybox"
    program.write_bytes(content)
    with pytest.raises(errors.Unavailable, match="not a static program") as refused, demoimage.root(program):
        pass
    assert "apt-get install busybox-static" in str(refused.value.hint)


def test_a_machine_without_busybox_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.command.PATH", "/nowhere")
    with pytest.raises(errors.Unavailable) as refused, demoimage.root(None):
        pass
    assert "apt-get install busybox-static" in str(refused.value.hint)


@pytest.mark.skipif(BUSYBOX is None, reason="needs busybox-static")
def test_one_line_makes_the_image(service: Service) -> None:
    made = service.fairlead("image", "demo", "localhost/box:1")
    assert (made.exit_code, "localhost/box:1" in made.stdout) == (0, True), made.stderr
    assert "localhost/box:1" in service.fairlead("image", "ls", "-o", "name").stdout
