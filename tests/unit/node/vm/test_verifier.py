"""Passed-through GPUs read in a machine: together, lent for as long, and nothing of a lying or hung guest counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.vm import emulator, image, verifier
from fairlead.plan.lease import guestevidence
from fairlead.wire.fairlead import guestreport
from tests.unit.node.vm import fakeqemu


def gpu(number: int) -> PassthroughGPU:
    path = f"/dev/vfio/{number}"
    return PassthroughGPU(
        key=GPUUUID(f"pcie-{number}"),
        vendor=Vendor.NVIDIA,
        address=f"0000:{number:02x}:00.0",
        group_nodes=(DeviceNode(path=path, host_path=path, major=240, minor=number, mode=0o600),),
    )


class Bench:
    """A verifier, its image, and who has the GPUs meanwhile."""

    def __init__(self, folder: Path, rest: str, monkeypatch: pytest.MonkeyPatch, limit_s: float = 20.0) -> None:
        monkeypatch.setattr(verifier, "TOGETHER_S", 0.2)
        made = folder / "image"
        made.mkdir(mode=0o700)
        for name in ("kernel", "initramfs"):
            (made / name).write_text(name)
        self.image = made
        self.lent: list[tuple[str, ...]] = []
        self.now: set[str] = set()
        options = verifier.Options(
            image=f"{made}@{image.digest_of(made)}",
            emulator=str(fakeqemu.write(folder, rest)),
            firmware="",
            memory_mib=256,
            processors=1,
            limit_s=limit_s,
        )
        self.verifier = verifier.MachineVerifier(options, self.lend)

    @contextlib.asynccontextmanager
    async def lend(self, keys: Collection[str]) -> AsyncIterator[None]:
        assert not self.now & set(keys)
        self.lent.append(tuple(keys))
        self.now |= set(keys)
        try:
            yield
        finally:
            self.now -= set(keys)

    async def read(self, *numbers: int) -> list[verifier.Reading | errors.FairleadError]:
        async def one(number: int) -> verifier.Reading | errors.FairleadError:
            try:
                return await self.verifier.read(gpu(number))
            except errors.FairleadError as error:
                return error

        return list(await asyncio.gather(*map(one, numbers)))


async def test_gpus_of_a_slot_are_read_in_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "greet(); tell(); serve()", monkeypatch)
    found = await bench.read(1, 2, 3, 4)
    assert [one.reported.serial for one in found if isinstance(one, verifier.Reading)] == [
        f"s-0000:0{number}:00.0" for number in (1, 2, 3, 4)
    ]
    assert len(bench.lent) == 1
    assert bench.now == set()
    assert {one.driver for one in found if isinstance(one, verifier.Reading)} == {"580.1"}


async def test_a_gpu_that_is_still_being_reset_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "greet(); tell(); serve()", monkeypatch)

    async def late() -> list[verifier.Reading | errors.FairleadError]:
        with bench.verifier.expecting("pcie-2"):
            await asyncio.sleep(1.0)
            return await bench.read(2)

    async def never() -> None:
        with bench.verifier.expecting("pcie-3"):
            await asyncio.sleep(0.7)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(late())
        tasks.create_task(never())
        tasks.create_task(bench.read(1))
    assert bench.lent == [("pcie-1", "pcie-2")]


async def test_more_than_one_machine_has_places_for_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "greet(); tell(); serve()", monkeypatch)
    found = await bench.read(*range(1, 21))
    assert all(isinstance(one, verifier.Reading) for one in found), found
    assert sorted(map(len, bench.lent)) == [4, 16]


_LIES = {
    "another-start": ('tell(nonce="0" * 32)', guestevidence.OTHER),
    "half": ("tell(gpus=gpus()[:1])", guestevidence.OTHER),
    "foreign": ('tell(gpus=[*gpus(), {"pci": "0000:09:00.0"}])', guestevidence.OTHER),
    "free": ('tell(verdict="pass")', guestreport.MALFORMED),
    "text": ('report.sendall(b"all is well\\n")', guestreport.MALFORMED),
    "flood": ('report.sendall(b"x" * (1 << 20))', emulator.TOO_LONG),
    "panic": ('say({"event": "GUEST_PANICKED"}); sys.exit(0)', emulator.ENDED),
    "silent": ("serve()", emulator.SILENT),
    "refused": ('print("group 7 is not viable", file=sys.stderr); sys.exit(1)', emulator.ENDED),
}


@pytest.mark.parametrize(("rest", "reason"), _LIES.values(), ids=_LIES)
async def test_nothing_of_a_guest_that_lies_or_hangs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, reason: str
) -> None:
    bench = Bench(tmp_path, f"greet()\n{rest}\nserve()", monkeypatch, limit_s=2.0)
    found = await bench.read(1, 2)
    assert [getattr(one, "reason", one) for one in found] == [reason, reason]
    assert bench.now == set()


async def test_an_image_that_was_changed_starts_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, "greet(); tell(); serve()", monkeypatch)
    (bench.image / "kernel").write_text("another")
    (found,) = await bench.read(1)
    assert isinstance(found, errors.Conflict)
    assert bench.lent == []


async def test_an_emulator_that_others_can_change_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "greet(); tell(); serve()", monkeypatch)
    (tmp_path / "qemu").chmod(0o777)
    (found,) = await bench.read(1)
    assert isinstance(found, errors.Denied)
    assert bench.lent == []


async def test_one_that_is_given_up_ends_its_machine_and_the_others_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "greet(); time.sleep(600)", monkeypatch)

    async def first() -> None:
        async with asyncio.timeout(1.5):
            await bench.verifier.read(gpu(1))

    async with asyncio.TaskGroup() as tasks:
        given_up = tasks.create_task(_suppressed(first()))
        other = tasks.create_task(bench.read(2))
    assert given_up.result()
    (found,) = other.result()
    assert isinstance(found, errors.Unavailable)
    assert bench.now == set()


async def _suppressed(work: object) -> bool:
    try:
        await work  # type: ignore[misc]
    except TimeoutError:
        return True
    return False
