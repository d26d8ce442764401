"""An audit of running containers: each is judged, or said to be unjudged."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.cli.core import localcontainer
from fairlead.kernel import ocistate
from fairlead.model.ids import DeviceID
from fairlead.node.isolation import entitlement
from fairlead.node.kubelet.devices import checkpoint
from fairlead.plan.gpu.attribution import Holding
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta, names
from fairlead_cdi import directory


def target(pid: int) -> localcontainer.Target:
    labels = {
        names.HOME: "home",
        names.POD_NAMESPACE: "default",
        names.POD_NAME: "train",
        names.CONTAINER_NAME: "main",
        "io.container.manager": "libpod",
    }
    return localcontainer.Target(name="default/train", pid=pid, subject=entitlement.Subject(labels=labels, id="c1"))


async def test_a_container_whose_device_no_spec_defines_is_reported_as_unjudged(tmp_path: Path) -> None:
    held = Holding(
        namespace="default", pod="train", container="main", resource="nvidia.com/gpu", ids=(DeviceID("GPU-1"),)
    )
    known = entitlement.AllocationSources(registry=directory.scan([str(tmp_path)]), holdings=(held,))
    ((name, report),) = await localcontainer.audit_targets([target(os.getpid())], known)
    assert name == "default/train"
    assert not report.is_clean
    assert report.doubt


def test_a_state_that_cannot_be_read_is_a_container_nobody_can_judge(tmp_path: Path) -> None:
    state = tmp_path / "run/runc/c0ffee/state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{")
    assert ocistate.list_running(tmp_path) == ()
    ((name, report),) = localcontainer.unread_states(tmp_path)
    assert name == "c0ffee"
    assert not report.is_clean
    assert str(state) in report.doubt


async def test_devices_asked_for_by_name_are_read_while_the_service_is_away(tmp_path: Path) -> None:
    wanted = core.MachineOptions(devices=("lab.example/thing=full",))
    every = tuple(core.Container(name=name, image="i") for name in ("main", "side"))
    path = tmp_path / "state.db"
    with SQLiteStore(path) as store:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name="default")))
        for name, machine in (("without", None), ("with", wanted)):
            spec = core.PodSpec(containers=every[:1], init_containers=every[1:], machine=machine)
            pod = core.Pod(metadata=meta.ObjectMeta(name=name, namespace="default"), spec=spec)
            uid = (await store.create(pod)).metadata.uid
    assert localcontainer.read_named(path) == {(uid, name): wanted.devices for name in ("main", "side")}
    assert localcontainer.read_named(tmp_path / "none.db") == {}
    path.write_bytes(b"no database" * 99)
    checkpoint.home_id(tmp_path / "kubelet")
    checkpoint.Checkpoint(tmp_path / "kubelet").save({})
    assert "state.db" in localcontainer.read_checkpoint(tmp_path / "kubelet").problem  # a doubt, and no hole to close
