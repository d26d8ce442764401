"""A Service VM's guest with the real QEMU, in software: told its secret on its port, it says that it lives.

What stands in: the Fabric Manager. There is no switch, and no vsock on this machine; `test_hgx_service.py` has both.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hgx import emulator as emulators
from hgx import serviceimage

from fairlead.node.vm import emulator, image
from fairlead.wire.fairlead import servicevm
from fairlead.wire.qemu.machine import Accelerator, Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "ab" * 32


async def test_a_guest_lives_once_it_was_told_its_secret_and_shows_it_nowhere(tmp_path: Path) -> None:
    emulators.require()
    folder = tmp_path / "image"
    folder.mkdir(mode=0o700)
    serviceimage.write(folder, switches=0)
    serviceimage.write_program(tmp_path / "qemu", emulators.ROOT)
    made = image.read(f"{folder}@{image.digest_of(folder)}")
    said = list[int]()

    def describe(qmp: int, report: int) -> Machine:
        return Machine(
            name="fairlead-fabric",
            emulator=str(tmp_path / "qemu"),
            kernel=made.kernel,
            initramfs=made.initramfs,
            command_line=f"{made.command_line} console=ttyS0 panic=-1",
            memory_mib=serviceimage.MEMORY_MIB,
            processors=1,
            qmp=qmp,
            report=report,
            accelerator=Accelerator.TCG,
        )

    async def use(running: emulator.Running) -> str:
        begun = time.monotonic()
        await running.tell(servicevm.emit(servicevm.Hello(secret=SECRET, port=6667)))
        while len(said) < 2:
            said.append(servicevm.parse_beat(await running.read_report(400)).beat)
        assert time.monotonic() - begun < 500
        return running.console

    console = await emulator.run_machine(describe, use, limit_s=120)
    assert said == [0, 1]
    assert "serving the Fabric Manager" in console
    assert SECRET not in console
