"""The sandbox program: a real executable on this processor, well-formed on others, and its image made once."""

from __future__ import annotations

import platform
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.engine.fake.engine import FakeEngine
from fairlead.node.kubelet import sandbox


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_program_is_a_static_executable_of_under_250_bytes(machine: str, number: int) -> None:
    program = sandbox.pause_program(machine)
    kind, processor, _, entry = struct.unpack_from("<HHIQ", program, 16)
    assert (program[:4], kind, processor) == (b"\x7fELF", 2, number)
    assert len(program) < 250
    start, size = struct.unpack_from("<Q", program, 64 + 16)[0], struct.unpack_from("<Q", program, 64 + 32)[0]
    assert (size, entry - start) == (len(program), 64 + 56)


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="no program for this processor")
def test_it_sleeps_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pause"
    path.write_bytes(sandbox.pause_program(platform.machine()))
    path.chmod(0o755)
    with subprocess.Popen([path]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        # A stop and a continue interrupt the system call: it must go back to sleep, not fall off its end.
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        process.terminate()
        assert process.wait(timeout=5) == -signal.SIGTERM


def test_a_processor_without_a_program_is_said_with_those_that_have_one() -> None:
    with pytest.raises(errors.Unavailable, match=r'processor "riscv64" \(offered: x86_64, aarch64\)') as caught:
        sandbox.pause_program("riscv64")
    assert caught.value.hint == "run pods of one container only"


async def test_the_image_is_made_once() -> None:
    engine = FakeEngine()
    assert await sandbox.ensure_image(engine, "x86_64") == sandbox.IMAGE
    (first,) = await engine.list_images()
    await sandbox.ensure_image(engine, "x86_64")
    assert await engine.list_images() == (first,)
    assert first.size_bytes == len(sandbox.pause_program("x86_64"))
