"""A node's own virtual machine with the real QEMU: booted in software, it reports by its port, and is ended."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import machine as machines
import pytest

from fairlead import errors
from fairlead.node.vm import emulator
from fairlead.wire.qemu.machine import REPORT_PORT, Accelerator, Machine

_INIT = f"""#!/bin/busybox sh
mount() {{ /bin/busybox mount -t "$1" "$1" "$2"; }}
mount proc /proc; mount sysfs /sys; mount devtmpfs /dev
while read -r module; do /bin/busybox insmod "/modules/$module.ko"; done </modules/order
port="$(/bin/busybox grep -l {REPORT_PORT} /sys/class/virtio-ports/*/name)"
port="/dev/${{port#/sys/class/virtio-ports/}}"; port="${{port%/name}}"
"""
_REPORT = """links="$(/bin/busybox ls /sys/class/net | /bin/busybox tr '\\n' ' ')"
disks="$(/bin/busybox ls /sys/class/block | /bin/busybox tr '\\n' ' ')"
line="$(/bin/busybox cat /proc/cmdline)"
echo "{\\"links\\": \\"$links\\", \\"disks\\": \\"$disks\\", \\"line\\": \\"$line\\"}" >"$port"
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _initramfs(folder: Path, rest: str) -> Path:
    target = folder / "initramfs"
    with target.open("wb") as file:
        archive = machines.Archive(file)
        for name in ("dev", "proc", "sys"):
            archive.add(name, mode=0o040755)
        archive.add_file(Path("/usr/bin/busybox"), "/bin/busybox")
        machines._add_modules(archive, ("virtio_pci", "virtio_console"))
        archive.add("init", (_INIT + rest).encode())
        archive.close()
    return target


def _describe(initramfs: Path, **changes: object) -> emulator.Describe:
    program = shutil.which(machines.QEMU)
    assert program is not None
    (kernel,) = (machines.KERNEL / "boot").glob("vmlinuz-*")

    def describe(qmp: int, report: int) -> Machine:
        made = Machine(
            name="verifier",
            emulator=program,
            kernel=str(kernel),
            initramfs=str(initramfs),
            command_line="console=ttyS0 loglevel=4 panic=-1 no_timer_check nowatchdog fairlead.token=5",
            memory_mib=256,
            processors=1,
            accelerator=Accelerator.TCG,
            qmp=qmp,
            report=report,
        )
        return dataclasses.replace(made, **changes)  # type: ignore[arg-type]

    return describe


async def test_a_machine_reports_and_has_neither_network_nor_disk(tmp_path: Path) -> None:
    machines.require()

    async def use(running: emulator.Running) -> tuple[dict[str, str], object, int, str]:
        report = json.loads(await running.read_report(200.0))
        return report, await running.ask("query-status"), running.pid, running.version

    initramfs = _initramfs(tmp_path, _REPORT + "exec /bin/busybox sleep 1000\n")
    report, status, pid, version = await emulator.run_machine(_describe(initramfs), use, limit_s=60.0)
    assert report["links"].split() == ["lo"]
    assert [one for one in report["disks"].split() if not one.startswith(("loop", "ram"))] == []
    assert "fairlead.token=5" in report["line"]
    assert isinstance(status, dict)
    assert status["status"] == "running"
    assert version
    assert not Path(f"/proc/{pid}").exists()


async def test_a_machine_that_powers_off_or_panics_before_its_report_says_so(tmp_path: Path) -> None:
    machines.require()

    async def use(running: emulator.Running) -> bytes:
        return await running.read_report(200.0)

    for name, rest, told in (
        ("off", "/bin/busybox poweroff -f\n", "guest-shutdown"),
        ("panic", "exit 1\n", "Kernel panic"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(errors.Unavailable) as failed:
            await emulator.run_machine(_describe(_initramfs(folder, rest)), use, limit_s=60.0)
        assert failed.value.reason == emulator.ENDED
        assert told in failed.value.message


async def test_qemu_says_why_a_machine_cannot_be_made(tmp_path: Path) -> None:
    machines.require()
    with pytest.raises(errors.Unavailable, match="no-kernel") as failed:
        await emulator.run_machine(
            _describe(Path(os.devnull), kernel=str(tmp_path / "no-kernel")), _nothing, limit_s=60.0
        )
    assert failed.value.reason == emulator.NOT_STARTED


async def _nothing(_: emulator.Running) -> None:
    raise AssertionError
