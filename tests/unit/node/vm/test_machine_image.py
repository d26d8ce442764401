"""A machine's image by its digest: read whole at each start, changed by nobody else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.vm import image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "verifier"
    made.mkdir(mode=0o700)
    (made / "kernel").write_bytes(b"k" * 5000)
    (made / "initramfs").write_bytes(b"i" * 9000)
    return made


def test_an_image_is_named_with_the_digest_that_sha256sum_makes(folder: Path) -> None:
    (folder / "command-line").write_text("quiet\n")
    listed = subprocess.run(
        ("sha256sum", "command-line", "initramfs", "kernel"), cwd=folder, capture_output=True, check=True
    )
    summed = subprocess.run(("sha256sum",), input=listed.stdout, capture_output=True, check=True)
    digest = f"sha256:{summed.stdout.split()[0].decode()}"
    assert image.digest_of(folder) == digest
    found = image.read(f"{folder}@{digest}")
    assert (found.kernel, found.command_line, found.digest) == (str(folder / "kernel"), "quiet", digest)


@pytest.mark.parametrize("name", ["kernel", "initramfs", "command-line"])
def test_an_image_that_was_changed_is_not_started(folder: Path, name: str) -> None:
    reference = f"{folder}@{image.digest_of(folder)}"
    (folder / name).write_text("another")
    with pytest.raises(errors.Conflict) as refused:
        image.read(reference)
    assert refused.value.reason == image.CHANGED
    assert image.digest_of(folder) in refused.value.message


@pytest.mark.parametrize("name", ["kernel", "initramfs"])
def test_half_an_image_is_none(folder: Path, name: str) -> None:
    reference = f"{folder}@{image.digest_of(folder)}"
    (folder / name).unlink()
    with pytest.raises(errors.NotFound, match=name):
        image.read(reference)


def test_an_image_that_others_can_change_is_not_started(folder: Path) -> None:
    reference = f"{folder}@{image.digest_of(folder)}"
    (folder / "kernel").chmod(0o666)
    with pytest.raises(errors.Denied) as refused:
        image.read(reference)
    assert refused.value.reason == image.UNTRUSTED
    (folder / "kernel").chmod(0o644)
    folder.chmod(0o777)
    with pytest.raises(errors.Denied):
        image.read(reference)


@pytest.mark.parametrize(
    "line", [b"\x00", b"a\x1bb", b"x" * 1501, "é".encode()], ids=["nul", "escape", "long", "foreign"]
)
def test_a_command_line_that_no_kernel_takes_is_refused(folder: Path, line: bytes) -> None:
    (folder / "command-line").write_bytes(line)
    with pytest.raises(errors.Invalid):
        image.read(f"{folder}@{image.digest_of(folder)}")


@pytest.mark.parametrize(
    "reference",
    ["", "/image", "image@sha256:" + "0" * 64, "/image@sha256:" + "0" * 63, "/image@md5:0", "/a\0b@sha256:" + "0" * 64],
    ids=["empty", "no-digest", "no-path", "short", "another-sum", "nul"],
)
def test_what_names_no_image_is_refused(reference: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        image.check_reference(reference)
    assert refused.value.reason == image.INVALID
    assert refused.value.message.isprintable()


def test_a_pipe_in_an_images_place_does_not_hang(folder: Path) -> None:
    (folder / "kernel").unlink()
    os.mkfifo(folder / "kernel")
    with pytest.raises(errors.FairleadError):
        image.read(f"{folder}@sha256:{'0' * 64}")
