"""Plans that are carried out on a kernel of files: what becomes of a unit, also when a step fails or hangs."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.vfio.executor import Executor
from fairlead.silicon.vfio import writer
from tests.unit.silicon.vfio import pcitree
from tests.unit.silicon.vfio.sysfskernel import Kernel, User

GPU, AUDIO, OTHER = "0000:0f:00.0", "0000:0f:00.1", "0000:13:00.0"
ERASED = {**pcitree.module_registers(1), 0x100B20: 1}


def machine(root: Path, *, driver: str = "nvidia", registers: dict[int, int] | None = None) -> Kernel:
    """Make a machine of a GPU with an audio function, and a GPU alone."""
    tree = pcitree.Tree(root)
    for name in ("vfio-pci", "nvidia"):
        tree.register_driver(name)
    for address in (GPU, OTHER):
        pcitree.add_gpu(tree, address, driver=driver)
        (tree.folder(address) / "resource0").write_bytes(pcitree.registers(registers or ERASED))
    audio = tree.add(
        AUDIO, ids=(0x10DE, 0x22BA), pci_class=0x040300, above="pci0000:0e/0000:0e:01.0", driver=driver, group=15
    )
    assert audio.is_dir()
    return Kernel(tree)


def executor(kernel: Kernel) -> Executor:
    return Executor(kernel.tree.root, kernel.find_users, open_writer=kernel.open_writer)


def state(kernel: Kernel) -> dict[str, tuple[str, str]]:
    return {one: (kernel.driver(one), kernel.override(one)) for one in (GPU, AUDIO, OTHER)}


def test_a_gpu_is_bound_with_its_board_and_given_back(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    before = state(kernel)
    (outcome,) = asyncio.run(executor(kernel).bind([GPU]))
    assert outcome.is_good
    assert state(kernel) == {GPU: ("vfio-pci",) * 2, AUDIO: ("vfio-pci",) * 2, OTHER: ("nvidia", "(null)")}
    (outcome,) = asyncio.run(executor(kernel).release([AUDIO]))
    assert outcome.is_good
    assert state(kernel) == before


def test_what_is_bound_is_not_written_to(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    asyncio.run(executor(kernel).bind([GPU]))
    kernel.writes.clear()
    (outcome,) = asyncio.run(executor(kernel).bind([GPU]))
    assert (outcome.is_good, outcome.done, kernel.writes) == (True, (), [])


def without_flr(kernel: Kernel) -> None:
    """Have a GPU that only its bus resets."""
    space = pcitree.config_space((0x10DE, 0x2330), 0x030200, serial=0x48B02D0000000013, flr=False)
    (kernel.tree.folder(OTHER) / "config").write_bytes(space)
    (kernel.tree.folder(OTHER) / "reset_method").write_text("bus\n")


def test_a_choice_of_resets_that_a_killed_reset_left_is_put_back_first(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    (kernel.tree.folder(OTHER) / "reset_method").write_text("bus\n")
    asyncio.run(executor(kernel).reset([OTHER]))
    assert kernel.resets == {(OTHER, "flr"): 1, (OTHER, "bus"): 1}
    assert (kernel.tree.folder(OTHER) / "reset_method").read_text() == "flr bus\n"


STEPS = [f"{name} {at}" for name in ("driver_override", "unbind", "drivers_probe") for at in (AUDIO, GPU)]


@pytest.mark.parametrize("where", STEPS)
@pytest.mark.parametrize("fault", [OSError(errno.EBUSY, "Device or resource busy"), writer.Hung(77, is_gone=True)])
def test_a_binding_that_fails_once_anywhere_is_put_back(tmp_path: Path, where: str, fault: Exception) -> None:
    kernel = machine(tmp_path)
    before = state(kernel)
    # The same write is wanted for putting it back, and works then: the fault is gone once it has been met.
    write = kernel.write

    async def once(path: Path, text: str, limit_s: float) -> None:
        try:
            await write(path, text, limit_s)
        except (OSError, writer.Hung):
            kernel.faults.clear()
            raise

    kernel.write = once  # type: ignore[method-assign]
    kernel.faults[where] = fault
    (outcome,) = asyncio.run(executor(kernel).bind([GPU]))
    assert outcome.failure is not None
    assert where.split()[1] == outcome.failure.step.address
    if outcome.failure.is_hung:  # nothing more is written to that one; the other is as before
        other = AUDIO if where.endswith(GPU) else GPU
        assert state(kernel)[other] == before[other]
        assert bool(outcome.left) == (state(kernel) != before)
    else:
        assert (state(kernel), outcome.left) == (before, ())


def test_an_unbind_that_hangs_is_named_with_its_process_and_what_is_left(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    kernel.faults[f"unbind {GPU}"] = writer.Hung(4711, is_gone=False)
    (outcome,) = asyncio.run(executor(kernel).bind([GPU]))
    assert outcome.failure is not None
    assert "did not return within 60 s; process 4711 stays in the kernel" in outcome.failure.message
    command = f"echo > /sys/bus/pci/devices/{GPU}/driver_override"
    assert outcome.left == (f'{GPU} has the override "vfio-pci" left; {command}',)
    assert state(kernel)[AUDIO] == ("nvidia", "(null)")
    assert [one for one in kernel.writes if GPU in one][-1] == f"unbind {GPU} {GPU}"


def test_the_driver_link_alone_says_whether_a_binding_worked(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    before = state(kernel)
    probes = iter([True, False])
    write = kernel.write

    async def deaf(path: Path, text: str, limit_s: float) -> None:
        if path.name == "drivers_probe" and text == GPU and next(probes, False):
            return
        await write(path, text, limit_s)

    kernel.write = deaf  # type: ignore[method-assign]
    (outcome,) = asyncio.run(executor(kernel).bind([GPU]))
    assert outcome.failure is not None
    assert outcome.failure.message == f"{GPU} is bound to no driver and not to vfio-pci; see dmesg for its reason"
    assert state(kernel) == before


def test_one_unit_that_fails_does_not_hold_up_another(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    kernel.faults[f"driver_override {AUDIO}"] = OSError(errno.EIO, "Input/output error")
    first, second = asyncio.run(executor(kernel).bind([GPU, OTHER]))
    assert (first.is_good, second.is_good) == (False, True)
    assert kernel.driver(OTHER) == "vfio-pci"


def test_a_binding_that_is_cancelled_is_put_back(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    before = state(kernel)
    write = kernel.write
    is_first = True

    async def slow(path: Path, text: str, limit_s: float) -> None:
        nonlocal is_first
        await write(path, text, limit_s)
        if path.name == "unbind" and is_first:
            is_first = False
            await asyncio.sleep(60)

    kernel.write = slow  # type: ignore[method-assign]

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await executor(kernel).bind([GPU])

    asyncio.run(cancelled())
    assert state(kernel) == before


def nodes(kernel: Kernel, pattern: str) -> tuple[tuple[str, int, int], ...]:
    found = [path.stat().st_rdev for path in kernel.tree.root.glob(f"dev/{pattern}")]
    return tuple(("c", os.major(one), os.minor(one)) for one in found)


def test_what_a_process_has_open_is_neither_released_nor_reset(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    asyncio.run(executor(kernel).bind([GPU, OTHER]))
    kernel.users = (User(pid=4242, devices=nodes(kernel, "vfio/15")),)  # type: ignore[arg-type]
    kernel.writes.clear()
    (outcome,) = asyncio.run(executor(kernel).release([GPU]))
    assert outcome.refusals[0].message.endswith("process 4242 (qemu-system-x86) has /dev/vfio/15 open")
    with pytest.raises(errors.Conflict, match="4242"):
        asyncio.run(executor(kernel).reset([GPU]))
    assert kernel.writes == []


def test_a_process_that_opens_it_between_plan_and_unbind_is_seen(tmp_path: Path) -> None:
    kernel = machine(tmp_path)
    asyncio.run(executor(kernel).bind([GPU]))
    bound = state(kernel)
    find = kernel.find_users
    first = kernel.looks

    def late(numbers: object) -> object:
        if kernel.looks > first:
            kernel.users = (User(pid=4242, devices=nodes(kernel, "vfio/15")),)  # type: ignore[arg-type]
        return find(numbers)  # type: ignore[arg-type]

    made = Executor(kernel.tree.root, late, open_writer=kernel.open_writer)  # type: ignore[arg-type]
    (outcome,) = asyncio.run(made.release([GPU]))
    assert outcome.failure is not None
    assert "process 4242" in outcome.failure.message
    assert (state(kernel), outcome.left) == (bound, ())
    assert not [one for one in kernel.writes if one.startswith("unbind") and kernel.driver(GPU) != "vfio-pci"]


def test_a_doubt_refuses_unless_this_process_has_the_nodes_itself(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    kernel.users = (User(pid=9, name="io", doubt="has files registered in an io_uring (3)"),)
    with pytest.raises(errors.Conflict, match="may have"):
        asyncio.run(executor(kernel).reset([OTHER]))
    asyncio.run(executor(kernel).reset([OTHER], is_ours=True))
    assert kernel.resets == {(OTHER, "flr"): 1, (OTHER, "bus"): 1}


# --- reset


def test_the_agent_resets_what_it_has_open_itself(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    asyncio.run(executor(kernel).reset([OTHER], is_ours=True))
    assert kernel.resets[OTHER, "flr"] == 1


def test_where_any_reset_is_enough_memory_need_not_say_that_it_is_erased(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci", registers=pcitree.module_registers(1))
    without_flr(kernel)
    asyncio.run(executor(kernel).reset([OTHER], needs_erased=False))
    assert kernel.resets == {(OTHER, "bus"): 1}


def test_where_any_reset_is_enough_there_must_be_one(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    (kernel.tree.folder(OTHER) / "reset_method").write_text("pm\n")
    with pytest.raises(errors.DeviceFault, match="no function level reset"):
        asyncio.run(executor(kernel).reset([OTHER], needs_erased=False))
    assert kernel.resets == {}


def test_a_reset_goes_both_ways_and_leaves_the_kernels_choice(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    asyncio.run(executor(kernel).reset([OTHER]))
    assert kernel.resets == {(OTHER, "flr"): 1, (OTHER, "bus"): 1}
    assert (kernel.tree.folder(OTHER) / "reset_method").read_text() == "flr bus\n"


def test_a_memory_that_is_not_erased_in_time_is_not_clean(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci", registers=pcitree.module_registers(1))
    with pytest.raises(errors.DeviceFault, match=r"did not say that its memory is erased within 0\.2 s") as caught:
        asyncio.run(executor(kernel).reset([OTHER], scrub_s=0.2))
    assert caught.value.reason == "VFIONotClean"


def test_what_a_plan_cannot_do_is_said_after_it_did_the_rest(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    without_flr(kernel)
    with pytest.raises(errors.DeviceFault, match="has no function level reset"):
        asyncio.run(executor(kernel).reset([OTHER]))
    assert kernel.resets == {(OTHER, "bus"): 1}


def test_a_reset_that_the_kernel_refuses_leaves_its_choice_as_before(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    kernel.faults[f"reset {OTHER}"] = OSError(errno.ENOTTY, "Inappropriate ioctl for device")
    with pytest.raises(errors.DeviceFault, match="Inappropriate ioctl"):
        asyncio.run(executor(kernel).reset([OTHER]))
    assert (kernel.tree.folder(OTHER) / "reset_method").read_text() == "flr bus\n"


def test_a_reset_that_hangs_is_named(tmp_path: Path) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    kernel.faults[f"reset {OTHER}"] = writer.Hung(88, is_gone=False)
    with pytest.raises(errors.Unavailable, match="process 88"):
        asyncio.run(executor(kernel).reset([OTHER]))


def test_a_gpu_that_falls_off_the_bus_is_not_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = machine(tmp_path, driver="vfio-pci")
    monkeypatch.setattr("fairlead.plan.vfio.resetting.ANSWER_S", 0.2)
    write = kernel.write

    async def killing(path: Path, text: str, limit_s: float) -> None:
        await write(path, text, limit_s)
        if path.name == "reset":
            (kernel.tree.folder(OTHER) / "config").write_bytes(b"\xff" * 4096)

    kernel.write = killing  # type: ignore[method-assign]
    with pytest.raises(errors.DeviceFault, match="did not answer"):
        asyncio.run(executor(kernel).reset([OTHER]))


def test_an_address_that_is_none_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound):
        asyncio.run(executor(machine(tmp_path)).reset(["0000:99:00.0"]))
