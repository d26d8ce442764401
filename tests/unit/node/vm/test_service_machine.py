"""A Service VM: told its secret on its port alone, watched, and started again when it ends, lies or falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.vm import emulator, image, service
from fairlead.wire.fairlead import servicevm
from tests.unit.node.vm import fakeqemu

SECRET = b"\xffk" * 16
SWITCHES = service.Switches(addresses=("0000:40:00.0", "0000:40:00.1"))


class Bench:
    """A Service VM whose emulator a test plays."""

    def __init__(self, folder: Path, rest: str, monkeypatch: pytest.MonkeyPatch, **options: float) -> None:
        monkeypatch.setattr(service, "_AGAIN_S", 0.01)
        made = folder / "image"
        made.mkdir(mode=0o700)
        for name in ("kernel", "initramfs"):
            (made / name).write_text(name)
        self.folder = folder
        self.switches = SWITCHES
        chosen = {"start_s": 20.0, "silence_s": 20.0, **options}
        heard = (
            f"open({str(folder / 'heard')!r}, 'a').write(json.dumps([listen(), sys.argv, dict(os.environ)]) + chr(10))"
        )
        self.machine = service.ServiceMachine(
            service.Options(
                image=f"{made}@{image.digest_of(made)}",
                emulator=str(fakeqemu.write(folder, f"greet()\n{heard}\n{rest}")),
                firmware="",
                memory_mib=1024,
                processors=1,
                port=6667,
                **chosen,
            ),
            secret=lambda: SECRET,
            switches=lambda: self.switches,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.machine.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not is_so():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)

    @property
    def heard(self) -> list[tuple[dict[str, object], list[str], dict[str, str]]]:
        path = self.folder / "heard"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


ALIVE = "beat(0)\nfor number in range(1, 9999):\n    beat(number)\n    time.sleep(0.05)"


async def test_it_gets_every_switch_and_its_secret_by_no_way_that_another_could_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, ALIVE, monkeypatch)
    async with bench.running():
        await bench.machine.is_alive.wait()
        ((hello, line, variables),) = bench.heard
        assert hello == {"version": servicevm.VERSION, "secret": SECRET.hex(), "port": 6667}
        devices = [json.loads(line[at + 1]) for at, word in enumerate(line) if word == "-device"]
        given = [one for one in devices if one["driver"] == "vfio-pci"]
        assert [one["host"] for one in given] == list(SWITCHES.addresses)
        assert len({one["bus"] for one in given}) == 2, "a root port for each"
        (vsock,) = [one for one in devices if one["driver"] == "vhost-vsock-pci"]
        assert vsock["guest-cid"] >= 1 << 16
        assert not {"-netdev", "-nic", "-drive", "-blockdev", "-hda"} & set(line)
        for text in (*line, *variables.values()):
            assert SECRET.hex() not in text
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.name != "heard":
                assert SECRET.hex().encode() not in path.read_bytes()
    assert not bench.machine.is_alive.is_set()


ENDINGS = {
    "ends": "beat(0)\nsys.exit(0)",
    "silent": "beat(0)\nserve()",
    "lies": 'report.sendall(b"all is well\\n")\nserve()',
    "goes back": "beat(1)\nbeat(1)\nserve()",
    "floods": 'report.sendall(b"x" * (1 << 20))\nserve()',
    "never lives": "serve()",
}


@pytest.mark.parametrize("rest", ENDINGS.values(), ids=ENDINGS)
async def test_one_that_ends_lies_or_falls_silent_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    bench = Bench(tmp_path, rest, monkeypatch, start_s=1.0, silence_s=0.3)
    async with bench.running():
        await bench.until(lambda: bench.machine.starts >= 2 and len(bench.heard) >= 2)
    cids = {word for _, line, _ in bench.heard for word in line if "guest-cid" in word}
    assert len(cids) == len(bench.heard), "each has a context id of its own"


async def test_nothing_starts_before_every_switch_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, ALIVE, monkeypatch)
    bench.switches = service.Switches(addresses=(), problem="0000:40:00.2 not bound to VFIO")
    async with bench.running():
        await asyncio.sleep(0.2)
        assert bench.machine.starts == 0
        bench.switches = SWITCHES
        await bench.machine.is_alive.wait()


async def test_an_image_or_emulator_that_others_can_change_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, ALIVE, monkeypatch)
    (tmp_path / "qemu").chmod(0o777)
    with pytest.raises(errors.Denied):
        await bench.machine._run_one(asyncio.Event())
    (tmp_path / "qemu").chmod(stat.S_IRWXU)
    (tmp_path / "image/kernel").write_text("another")
    with pytest.raises(errors.Conflict):
        await bench.machine._run_one(asyncio.Event())
    assert bench.heard == []


async def test_one_that_cannot_be_ended_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, ALIVE, monkeypatch)

    async def stuck(*_: object, **__: object) -> None:
        raise errors.DeviceFault("it was killed and has not ended", reason=emulator.STUCK)

    monkeypatch.setattr(emulator, "run_machine", stuck)
    with pytest.raises(errors.DeviceFault):
        await bench.machine.run(asyncio.Event())
    assert bench.machine.starts == 1
