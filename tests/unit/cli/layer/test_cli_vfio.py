"""`fairlead vfio …` over a made-up machine as a script sees it: listings, steps, what is refused, exit classes."""

from __future__ import annotations

import errno
import functools
import json
import os
from pathlib import Path

import click.testing
import pytest

from fairlead import errors
from fairlead.cli.core import invocation
from fairlead.cli.layer.vfio import group
from fairlead.node.vfio import executor
from tests.unit.silicon.vfio import pcitree
from tests.unit.silicon.vfio.sysfskernel import Kernel, User

GPU, OTHER = "0000:0f:00.0", "0000:13:00.0"
ERASED = {**pcitree.module_registers(3), 0x100B20: 1}


class Machine:
    """Two GPUs with a driver, and what runs the verbs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = pcitree.Tree(root)
        for name in ("vfio-pci", "nvidia"):
            tree.register_driver(name)
        for address in (GPU, OTHER):
            pcitree.add_gpu(tree, address)
            (tree.folder(address) / "resource0").write_bytes(pcitree.registers(ERASED))
        self.kernel = Kernel(tree)
        made = functools.partial(
            executor.Executor, find_users=self.kernel.find_users, open_writer=self.kernel.open_writer
        )
        monkeypatch.setattr(executor, "Executor", made)
        self.env = {"FAIRLEAD_SILICON_ROOT": str(root), "COLUMNS": "80"}

    def invoke(self, *args: str) -> click.testing.Result:
        call = invocation.Invocation(env=self.env)
        return click.testing.CliRunner().invoke(
            group.group, args, obj=call, catch_exceptions=False, standalone_mode=False
        )

    def run(self, *args: str) -> str:
        return self.invoke(*args).stdout


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_listing_fits_eighty_columns_and_says_what_is_missing(machine: Machine) -> None:
    said = machine.run("list")
    assert max(map(len, said.splitlines())) <= 80
    assert GPU in said
    assert f"fairlead vfio bind {GPU}" in " ".join(said.split())


def test_a_listing_for_programs_has_everything(machine: Machine) -> None:
    machine.run("bind", GPU)
    first, second = json.loads(machine.run("list", "-o", "json"))
    assert (first["address"], first["module"], first["driver"], first["is_ready"]) == (GPU, 3, "vfio-pci", True)
    assert first["nodes"] == ["/dev/vfio/15", "/dev/vfio/devices/vfio0"]
    assert (second["module"], second["is_ready"], second["obstacles"][0]["why"]) == (None, False, "OtherDriver")
    assert machine.run("list", "-o", "name") == f"{GPU}\n{OTHER}\n"


def test_registers_of_a_gpu_with_a_driver_or_a_user_are_not_read(machine: Machine) -> None:
    machine.run("bind", GPU)
    node = (machine.kernel.tree.root / "dev/vfio/15").stat().st_rdev
    machine.kernel.users = (User(pid=4242, devices=(("c", os.major(node), os.minor(node)),)),)
    first, second = json.loads(machine.run("list", "-o", "json"))
    assert (first["module"], second["module"]) == (None, None)
    assert first["holders"][0]["pid"] == 4242


@pytest.mark.parametrize("name", [GPU, "0f:00.0", "0F:00.0", "48b02d000000000f", "pcie-48b02d000000000f"])
def test_a_gpu_is_named_by_address_serial_or_key(machine: Machine, name: str) -> None:
    assert machine.run("list", name, "-o", "name") == f"{GPU}\n"


def test_a_name_that_is_none_is_refused(machine: Machine) -> None:
    with pytest.raises(errors.NotFound, match="0000:77"):
        machine.run("bind", "0000:77:00.0")


def test_a_serial_that_two_have_names_neither(machine: Machine) -> None:
    (machine.kernel.tree.folder(OTHER) / "config").write_bytes(
        (machine.kernel.tree.folder(GPU) / "config").read_bytes()
    )
    with pytest.raises(errors.Invalid, match=f"{GPU}, {OTHER}"):
        machine.run("list", "48b02d000000000f")


def test_check_says_what_mends_it_and_ends_in_1(machine: Machine) -> None:
    result = machine.invoke("check", GPU)
    assert result.return_value == 1 or result.exit_code == 1
    assert f"mend: fairlead vfio bind {GPU}" in result.stdout
    machine.run("bind", GPU)
    result = machine.invoke("check", GPU)
    assert (result.exit_code, result.return_value or 0) == (0, 0)
    assert f"{GPU}  " in result.stdout


def test_a_dry_run_shows_the_plan_and_writes_nothing(machine: Machine) -> None:
    planned = machine.run("plan", GPU)
    assert planned == machine.run("bind", "--dry-run", GPU)
    assert planned.splitlines()[:2] == [
        f"# {GPU}",
        f"echo vfio-pci > /sys/bus/pci/devices/{GPU}/driver_override",
    ]
    assert machine.kernel.writes == []


def test_a_gpu_is_bound_reset_and_released(machine: Machine) -> None:
    assert machine.run("bind", GPU) == f"{GPU}: bound\n"
    assert machine.run("bind", GPU) == f"{GPU}: bound already\n"
    assert machine.run("reset", GPU) == f"{GPU}: reset, and its memory is erased\n"
    assert machine.kernel.resets[GPU, "flr"] == 1
    assert machine.run("release", GPU) == f"{GPU}: released\n"
    assert machine.kernel.driver(GPU) == "nvidia"


def test_the_steps_of_a_reset_fit_eighty_columns(machine: Machine) -> None:
    machine.run("bind", GPU)
    said = machine.run("reset", "--dry-run", GPU)
    assert max(map(len, said.splitlines())) <= 80
    assert not machine.kernel.resets


def test_a_gpu_in_use_is_refused_with_its_process(machine: Machine) -> None:
    machine.run("bind", GPU)
    node = (machine.kernel.tree.root / "dev/vfio/15").stat().st_rdev
    machine.kernel.users = (User(pid=4242, devices=(("c", os.major(node), os.minor(node)),)),)
    for verb in ("release", "reset"):
        with pytest.raises(errors.Conflict, match="process 4242") as caught:
            machine.run(verb, GPU)
        assert caught.value.hint == "end it first"


def test_a_step_that_fails_says_that_it_is_as_before(machine: Machine) -> None:
    machine.kernel.faults[f"unbind {GPU}"] = OSError(errno.EBUSY, "Device or resource busy")
    with pytest.raises(errors.Unavailable, match=r"busy.*; it is as before"):
        machine.run("bind", GPU)


def test_of_several_each_failure_is_said_and_counted(machine: Machine) -> None:
    for address in (GPU, OTHER):
        machine.kernel.faults[f"unbind {address}"] = OSError(errno.EBUSY, "Device or resource busy")
    with pytest.raises(errors.Unavailable, match="2 of 2 were not bound"):
        machine.run("bind", GPU, OTHER)


def test_simulated_gpus_are_not_passed_through(machine: Machine) -> None:
    machine.env["FAIRLEAD_SILICON_SIMULATE"] = "h100x8"
    with pytest.raises(errors.Invalid, match="h100x8"):
        machine.run("bind", GPU)


def test_only_root_writes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(errors.Denied):
        machine.run("bind", GPU)
    assert machine.kernel.writes == []
