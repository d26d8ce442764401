"""`fairlead vfio guest-report` and `image-digest`: what runs in a verifier's machine."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from fairlead.silicon.nvidia import guestreading
from fairlead.silicon.sim import machine, profile
from fairlead.silicon.sim.nvml import library
from fairlead.wire.fairlead import guestreport
from fairlead.wire.qemu.machine import REPORT_PORT
from tests.unit.cli import liveservice


def test_every_gpu_is_read_with_its_place_and_firmware() -> None:
    host = machine.Machine(profile.load("h100x8"))
    report = guestreading.read_guest(library.SimulatedNVML(host), "5f")
    assert (report.nonce, len(report.gpus), len({one.serial for one in report.gpus})) == ("5f", 8, 8)
    assert all(one.vbios and one.inforom and one.device.endswith("10de") for one in report.gpus)
    assert {one.mig_mode for one in report.gpus} == {False}
    assert guestreport.parse(guestreport.emit(report)) == report


def test_a_gpu_that_is_lost_is_reported_as_such() -> None:
    host = machine.Machine(profile.load("h100x8"))
    silicon = library.SimulatedNVML(host)

    class Losing:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: 15) if name == "nvmlDeviceGetVbiosVersion" else getattr(silicon, name)

    report = guestreading.read_guest(Losing(), "5f")
    assert all(one.failure and not one.vbios for one in report.gpus)
    assert guestreport.parse(guestreport.emit(report)) == report


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guest with its command line and its port, without a driver of its own."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("quiet fairlead.nonce=image fairlead.nonce=ours\n")
    host = machine.Machine(profile.load("h100x8"))
    real = guestreading.read_guest
    monkeypatch.setattr(guestreading, "read_guest", lambda _, nonce: real(library.SimulatedNVML(host), nonce))
    return tmp_path


def _run(root: Path, *words: str) -> tuple[int, str]:
    done = liveservice.fairlead("vfio", *words, env={"FAIRLEAD_SILICON_ROOT": str(root)})
    return done.exit_code, done.stdout + done.stderr


def test_the_report_names_the_start_that_the_node_named(root: Path) -> None:
    code, said = _run(root, "guest-report", "--port", "-")
    assert code == 0, said
    assert guestreport.parse(said.encode()).nonce == "ours"


def test_the_report_goes_to_the_port_by_its_name(root: Path) -> None:
    folder = root / "sys/class/virtio-ports/vport0p1"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{REPORT_PORT}\n")
    ours, theirs = pty.openpty()
    try:
        (root / "dev").mkdir()
        code, said = _run(root, "guest-report")
        assert (code, "vport0p1 cannot be written" in " ".join(said.split())) == (6, True)
        code, said = _run(root, "guest-report", "--port", os.ttyname(theirs))
        assert code == 0, said
        line = b""
        while not line.endswith(b"\n"):  # a terminal gives what is written in parts
            line += os.read(ours, 1 << 16)
        assert guestreport.parse(line).nonce == "ours"
    finally:
        os.close(ours)
        os.close(theirs)


def test_without_port_or_nonce_it_says_what_is_missing(root: Path) -> None:
    code, said = _run(root, "guest-report")
    assert (code, REPORT_PORT in said) == (2, True)
    (root / "proc/cmdline").write_text("quiet\n")
    code, said = _run(root, "guest-report", "--port", "-")
    assert (code, "--nonce" in said) == (2, True)
    code, said = _run(root, "guest-report", "--port", "-", "--nonce", "a\x1bb")
    assert (code, "\x1b" in said) == (2, False)
    (root / "file").write_text("kept")
    assert _run(root, "guest-report", "--port", str(root / "file"))[0] != 0
    assert (root / "file").read_text() == "kept"


def test_an_image_is_named_with_its_digest(tmp_path: Path) -> None:
    for name in ("kernel", "initramfs"):
        (tmp_path / name).write_text(name)
    code, said = _run(tmp_path, "image-digest", str(tmp_path))
    assert code == 0
    assert said.startswith(f"{tmp_path}@sha256:")
    (tmp_path / "kernel").unlink()
    assert _run(tmp_path, "image-digest", str(tmp_path))[0] == 2
