"""What a node says of its machine, where the silicon's root has only some of the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.port import EngineInfo
from fairlead.node.kubelet import nodestatus
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, meta, quantity

T = TypeVar("T", bound=meta.Object)

_ENGINE = EngineInfo(name="podman", version="5.4.2", runtime="crun", cdi_ceiling="0.8.0", cgroup_version=2)


def test_a_root_with_gpus_alone_leaves_memory_and_boot_to_the_machine(tmp_path: Path) -> None:
    host = nodestatus.machine_capacity(Path("/"), max_pods=110)
    assert nodestatus.machine_capacity(tmp_path, max_pods=110) == host
    found = nodestatus.describe(tmp_path, _ENGINE)
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_node_has_the_disk_that_containers_write_to(tmp_path: Path) -> None:
    """Every node of Kubernetes has ephemeral-storage: a manifest that asks for some must not wait for ever."""
    found = nodestatus.machine_capacity(Path("/"), max_pods=1, disk=tmp_path)["ephemeral-storage"]
    assert quantity.parse_whole(found) == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize


def test_a_root_that_has_them_is_believed(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\nMemTotal:       42 kB\n")
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
    assert nodestatus.machine_capacity(tmp_path, max_pods=1)["memory"] == "42Ki"
    assert nodestatus.describe(tmp_path, _ENGINE).boot_id == "boot-1"


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "MemTotal: lots kB\n"])
def test_memory_that_is_not_told_is_an_error_with_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text)
    with pytest.raises(errors.Unavailable, match="proc/meminfo does not say MemTotal"):
        nodestatus.machine_capacity(tmp_path, max_pods=1)


class Disturbed(MemoryStore):
    """Has another writer label the node between each first look at it and the write that follows."""

    other_writes: int = 0

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        found = await super().get(kind, name, namespace)
        if isinstance(found, core.Node) and self.other_writes < 2:
            self.other_writes += 1
            labels = {**found.metadata.labels, f"of-another-{self.other_writes}": "kept"}
            await super().update(msgspec.structs.replace(found, metadata=meta.ObjectMeta(name=name, labels=labels)))
        return found


async def test_what_others_write_at_the_same_moment_is_neither_undone_nor_a_failure() -> None:
    store = Disturbed()
    devices = {"nvidia.com/gpu": (8, 7)}
    for _ in range(2):
        await nodestatus.publish(store, "vm", {"cpu": "2"}, devices, None, is_ready=True, reason="KubeletReady")
    node = await store.get(core.Node, "vm")
    assert {**nodestatus.node_labels("vm"), "of-another-1": "kept", "of-another-2": "kept"} == node.metadata.labels
    assert node.status.allocatable == {"cpu": "2", "nvidia.com/gpu": "7"}


async def test_devices_of_an_earlier_service_are_forgotten_before_anybody_is_placed_by_them() -> None:
    store = MemoryStore()
    await nodestatus.forget_devices(store, "one")
    machine, devices = {"cpu": "4", "pods": "9"}, {"nvidia.com/gpu": (64, 64)}
    await nodestatus.publish(store, "one", machine, devices, None, is_ready=True, reason="KubeletReady")
    await nodestatus.forget_devices(store, "one")
    status = (await store.get(core.Node, "one")).status
    assert (status.allocatable, status.capacity) == (machine, machine)
    assert status.conditions[0].status == "True"


def test_the_machines_start_is_read_and_a_kernel_that_does_not_say_is_0(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  1 2 3\nbtime 1795780170\nprocesses 5\n")
    assert nodestatus.booted_at(tmp_path) == 1795780170
    (tmp_path / "proc/stat").write_text("cpu  1 2 3\n")
    assert nodestatus.booted_at(tmp_path) == 0
