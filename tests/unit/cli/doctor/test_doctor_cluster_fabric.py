"""The doctor names Service VMs that do not run, and machines whose driver is not that of the Fabric Managers."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import settings
from fairlead.cli.doctor.cluster import checks, fabric, facts
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta, names, workload
from tests.unit.cli.doctor import test_cli_doctor_cluster as doctor


def _node(name: str, manager: str = "") -> core.Node:
    labels = {names.FABRIC_MANAGER: manager} if manager else {}
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels))


def _machines(wanted: int, ready: int, component: str = fabric.COMPONENT) -> workload.DaemonSet:
    labels = {**doctor.OURS, "app.kubernetes.io/component": component}
    status = workload.DaemonSetStatus(desired_number_scheduled=wanted, number_ready=ready)
    return workload.DaemonSet(metadata=meta.ObjectMeta(name="f", namespace="gpus", labels=labels), status=status)


@pytest.mark.parametrize(
    ("wanted", "ready", "component", "level"),
    [
        (2, 2, fabric.COMPONENT, ""),
        (2, 1, fabric.COMPONENT, "fail"),
        (0, 0, fabric.COMPONENT, "warn"),
        (2, 0, "agent", ""),
    ],
)
def test_service_vms_that_do_not_run_are_named_with_the_way_to_their_logs(
    wanted: int, ready: int, component: str, level: str
) -> None:
    found = list(fabric.check_machines([_machines(wanted, ready, component)]))
    assert [one.level for one in found] == ([level] if level else [])
    assert all("gpus/f" in one.what and one.fix and one.why for one in found)


@pytest.mark.parametrize(
    ("managers", "driver", "levels"),
    [
        (("580.95.05",), "580.95.05", ["ok"]),
        (("580.95.05", ""), "580.95.05", ["ok"]),
        (("570.1",), "580.95.05", ["fail"]),
        (("570.1", "580.95.05"), "580.95.05", ["warn"]),
        (("570.1", "565.2"), "580.95.05", ["fail", "fail"]),
        (("",), "580.95.05", []),
        (("570.1",), None, []),
    ],
)
def test_a_class_whose_driver_no_manager_has_is_worse_than_one_that_some_lack(
    managers: tuple[str, ...], driver: str | None, levels: list[str]
) -> None:
    nodes = [_node(f"n{number}", manager) for number, manager in enumerate(managers)]
    found = list(fabric.check_drivers({} if driver is None else {"kata-x4": driver}, nodes))
    assert [one.level for one in found] == levels
    for version, one in zip(sorted(version for version in managers if version != driver), found, strict=False):
        if one.level != "ok":
            where = f"n{managers.index(version)}"
            assert (
                one.what == f'RuntimeClass "kata-x4" boots driver {driver}, and Fabric Manager {version} is on {where}'
            )
            assert names.GUEST_DRIVER in one.fix


def test_many_nodes_and_any_annotation_make_a_short_line() -> None:
    nodes = [_node(f"n{number:03}", "570.1") for number in range(200)]
    (found,) = fabric.check_drivers({"k": "x\n" * 100_000}, nodes)
    assert "n000, n001, n002 and 197 more" in found.what
    assert found.what.isprintable()
    assert found.fix.isprintable()
    assert len(found.what) < 200


class _Server:
    address = "https://cluster"

    async def version(self) -> str:
        return "v1.36.3"

    async def list_rules(self, _namespace: str = "default") -> tuple[()]:
        return ()

    async def may(self, *_args: object, **_more: object) -> bool:
        return True


async def test_classes_and_nodes_of_a_cluster_are_read_and_judged() -> None:
    store = memory.MemoryStore()
    about = meta.ObjectMeta(name="kata-x4", annotations={names.GUEST_DRIVER: "580.95.05"})
    await store.create(workload.RuntimeClass(metadata=about, handler="kata"))
    await store.create(workload.RuntimeClass(metadata=meta.ObjectMeta(name="plain"), handler="plain"))
    await store.create(_node("a", "570.1"))
    seen = await facts.read_facts(store, _Server(), settings.Settings())
    assert seen.guest_drivers == {"kata-x4": "580.95.05"}
    (found,) = [one for one in checks.check(seen) if one.check == "fabric"]
    assert "570.1" in found.what
    assert not [one for one in checks.check(dataclasses.replace(seen, nodes=None)) if one.check == "fabric"]
