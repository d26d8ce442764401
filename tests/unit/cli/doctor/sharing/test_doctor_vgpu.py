"""What doctor says of vGPUs that are lent, that cannot be, and of licences."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from fairlead.cli.doctor.sharing import vgpu
from fairlead.model.gpu import Licence
from fairlead.serve.backend import vgpus
from fairlead.serve.backend.hardware import GPUListing, GPUView
from fairlead.silicon import once
from fairlead.silicon.sim import host


def listing(folder: Path, profile: str) -> GPUListing:
    """What a machine of a profile is, with no agent on it."""
    made = host.SimulatedHost(folder, profile)
    try:
        reader = once.SimulatedReader(made.tree.path, made.library, call_timeout_s=10)
        inventory, drivers = reader.scan(), reader.scan_driver()
    finally:
        made.machine.close()
    return GPUListing(
        gpus=tuple(GPUView(gpu=gpu, node="", holders=()) for gpu in inventory.gpus),
        unreadable=inventory.unreadable,
        drivers=(),
        is_simulated=True,
        vgpus=vgpus.list_vgpus(drivers, inventory.gpus, (), (), node=""),
        lenders=vgpus.list_lenders(drivers),
    )


@pytest.mark.parametrize(
    ("profile", "kinds"),
    [("l40sx2-vgpu", "2 of NVIDIA L40S-12Q, 2 of NVIDIA L40S-24Q"), ("t4x2-vgpu", "2 of GRID T4-8Q")],
)
def test_what_is_lent_is_counted_and_the_licence_is_the_guests(profile: str, kinds: str, tmp_path: Path) -> None:
    [found] = vgpu.check(listing(tmp_path, profile))
    assert (found.level, kinds in found.what) == ("ok", True)
    assert "only its own driver knows" in found.why


def test_no_virtual_function_is_taken_for_a_gpu_that_does_not_answer(tmp_path: Path) -> None:
    assert listing(tmp_path, "l40sx2-vgpu").unreadable == ()


def test_a_machine_that_lends_nothing_has_no_finding(tmp_path: Path) -> None:
    assert list(vgpu.check(listing(tmp_path, "t4x4"))) == []


def test_a_licence_is_reported_as_the_driver_says_it(tmp_path: Path) -> None:
    seen = listing(tmp_path, "vgpu-guest")
    [found] = vgpu.check(seen)
    assert (found.level, found.what.endswith("licensed for NVIDIA Virtual Compute Server (expires: permanent)")) == (
        "ok",
        True,
    )
    [view] = seen.gpus
    for licences, words in (
        ((Licence(product="X", is_licensed=False),), "without a licence for X"),
        (None, "does not say"),
    ):
        gpu = dataclasses.replace(view.gpu, licences=licences, is_virtual=True)
        [worse] = vgpu.check(
            GPUListing(gpus=(GPUView(gpu=gpu, node="", holders=()),), unreadable=(), drivers=(), is_simulated=True)
        )
        assert (worse.level, words in worse.what) == ("warn", True)


def test_a_vgpu_that_the_agent_does_not_offer_is_named_beside_those_that_it_does(tmp_path: Path) -> None:
    seen = listing(tmp_path, "t4x2-vgpu")
    one, other = seen.vgpus
    offered = msgspec.structs.replace(one, resource="nvidia.com/GRID_T4-8Q", health="Healthy")
    levels = [found.level for found in vgpu.check(msgspec.structs.replace(seen, vgpus=(offered, other)))]
    assert levels == ["ok", "warn"]
