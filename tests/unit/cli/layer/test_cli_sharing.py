"""`fairlead sharing` shows who shares which GPU."""

from __future__ import annotations

import dataclasses
from typing import cast

import msgspec
import pytest

from fairlead.cli.core import output
from fairlead.cli.core.client import Client
from fairlead.cli.layer import sharing
from fairlead.cli.view import gpus
from fairlead.model.gpu import GPU, MIGDevice
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder


def view(index: int, *holders: Holder, replicas: int = 0) -> GPUView:
    gpu = GPU(uuid=GPUUUID(f"GPU-{index}"), index=index, minor=index, pci_bus_id="", name="X", memory_bytes=1)
    return GPUView(
        gpu=gpu,
        node="n",
        holders=holders,
        resource="nvidia.com/gpu",
        sharing="time-slicing" if replicas else "",
        replicas=replicas,
    )


def holder(device: str, container: str, namespace: str = "default") -> Holder:
    return Holder(device=device, namespace=namespace, container=container)


def test_only_shared_gpus_are_listed_with_each_holders_replicas() -> None:
    held = (holder("GPU-1::0", "a"), holder("GPU-1::3", "a"), holder("GPU-1::1", "b", "team"))
    listing = GPUListing(
        gpus=(view(0, holder("GPU-0", "whole")), view(1, *held, replicas=4)),
        unreadable=(),
        drivers=(),
        is_simulated=True,
    )
    (found,) = sharing.shared(listing)
    assert (found.uuid, found.means, found.used, found.replicas) == ("GPU-1", "time-slicing", 3, 4)
    assert [(one.namespace, one.container, one.replicas) for one in found.holders] == [
        ("default", "a", ("GPU-1::0", "GPU-1::3")),
        ("team", "b", ("GPU-1::1",)),
    ]
    assert found.limits.startswith("none")


def test_limits_of_mps_are_a_replicas_share() -> None:
    shared = view(0, replicas=4)
    big = msgspec.structs.replace(shared, sharing="mps", gpu=dataclasses.replace(shared.gpu, memory_bytes=80 << 30))
    listing = GPUListing(gpus=(big,), unreadable=(), drivers=(), is_simulated=True)
    (found,) = sharing.shared(listing)
    assert found.limits == "20480 MiB, 25% of the threads"


def test_mig_devices_are_a_means_of_sharing_and_each_holder_has_its_devices_memory() -> None:
    parts = tuple(
        MIGDevice(
            uuid=MIGUUID(f"MIG-{at}"),
            index=at,
            profile=profile,
            gpu_instance=at,
            compute_instance=0,
            placement_start=None,
            placement_size=None,
            memory_bytes=mib << 20,
        )
        for at, (profile, mib) in enumerate((("1g.10gb", 9984), ("1g.10gb", 9984), ("3g.40gb", 40448)))
    )
    bare = view(0, holder("MIG-2", "a", "team"))
    item = msgspec.structs.replace(bare, gpu=dataclasses.replace(bare.gpu, mig_enabled=True, mig_devices=parts))
    (found,) = sharing.shared(GPUListing(gpus=(item,), unreadable=(), drivers=(), is_simulated=True))
    assert (found.means, found.used, found.replicas) == ("mig", 1, 3)
    assert found.limits == "2 x 1g.10gb or 1 x 3g.40gb"
    assert [one.limits for one in found.holders] == ["3g.40gb, 40448 MiB"]


def test_a_divided_gpu_that_nobody_has_shows_its_instances(capsys: pytest.CaptureFixture[str]) -> None:
    part = MIGDevice(
        uuid=MIGUUID("MIG-0"),
        index=0,
        profile="3g.40gb",
        gpu_instance=1,
        compute_instance=0,
        placement_start=0,
        placement_size=4,
        memory_bytes=40448 << 20,
    )
    parts = (part, dataclasses.replace(part, uuid=MIGUUID("MIG-1"), index=1))
    bare = msgspec.structs.replace(view(0, holder("MIG-1", "a")), resource="")
    item = msgspec.structs.replace(bare, gpu=dataclasses.replace(bare.gpu, mig_enabled=True, mig_devices=parts))
    (half,) = sharing.shared(GPUListing(gpus=(item,), unreadable=(), drivers=(), is_simulated=True))
    assert [(one.profile, one.memory_mib, one.holder) for one in half.instances] == [
        ("3g.40gb", 40448, ""),
        ("3g.40gb", 40448, "default/a"),
    ]
    idle = msgspec.structs.replace(item, holders=())
    found = tuple(sharing.shared(GPUListing(gpus=(idle,), unreadable=(), drivers=(), is_simulated=True)))
    for form, wanted in (("table", "2 x 3g.40gb"), ("wide", "3g.40gb free,3g.40gb free")):
        output.show_listing(found, sharing._COLUMNS, form=form, name=lambda one: one.uuid)
        assert wanted in capsys.readouterr().out


def test_gpus_show_how_many_replicas_are_held_where_any_gpu_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    held = (holder("GPU-1::0", "a"), holder("GPU-1::3", "a"), holder("GPU-1::1", "b"))
    for replicas, shown in ((4, True), (0, False)):
        found = GPUListing(
            gpus=(view(0), view(1, *held, replicas=replicas)), unreadable=(), drivers=(), is_simulated=False
        )
        gpus._show(cast(Client, None), found, form="table")
        out = capsys.readouterr().out
        assert ("SHARED" in out, "3/4" in out) == (shown, shown)
