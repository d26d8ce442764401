"""`fairlead dra explain` of claims for GPUs that are passed through, with devices and classes as nodes publish them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from click.testing import CliRunner, Result

from fairlead.cli.layer.dra import group
from fairlead.model.driver import DriverFiles, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.plan.dra import deviceclass, offered, passthrough, slices, taints
from fairlead.wire.kubernetes.meta import Object, ObjectMeta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceslice import ResourcePool, ResourceSlice, ResourceSliceSpec
from tests.unit.node.dra.claimnode import passed
from tests.unit.plan.dra import draworld

DRIVER = "gpu.nvidia.com"
ONE, TWO = passed(1), passed(2)


def published(*gpus: PassthroughGPU, against: taints.Against = taints.NOTHING) -> list[dict[str, Any]]:
    """Return a node's slices and the classes, as an API server serves them."""
    files = DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=gpus)
    offer = offered.plan_devices(dataclasses.replace(draworld.snapshot_of(), drivers=(files,)))
    contents = slices.plan_contents(offer, taints.plan_taints(offer, against), slices.Server())
    made = [
        ResourceSlice(
            metadata=ObjectMeta(name=f"hgx-{number}"),
            spec=ResourceSliceSpec(
                driver=DRIVER,
                node_name="hgx",
                pool=ResourcePool(name="hgx", generation=1, resource_slice_count=len(contents)),
                devices=content.devices,
            ),
        )
        for number, content in enumerate(contents)
    ]
    every: list[Object] = [*deviceclass.CLASSES, *made]
    return [dialect.emit(one, dialect.V1) for one in every]


def claim(name: str, *, of: str = "vfio.gpu.nvidia.com", has: str = "", **exactly: Any) -> dict[str, Any]:
    requests = [{"name": "vm", "exactly": {"deviceClassName": of, **exactly}}]
    made: dict[str, Any] = {
        "apiVersion": dialect.V1,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": requests}},
    }
    if has:
        result = {"request": "vm", "driver": DRIVER, "pool": "hgx", "device": has}
        users = [{"resource": "pods", "name": f"pod-of-{name}", "uid": "1"}]
        made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}
    return made


def explain(name: str, *documents: dict[str, Any], words: tuple[str, ...] = ()) -> Result:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*documents]})
    return CliRunner().invoke(group.group, ["explain", "-f", "-", name, *words], input=text, standalone_mode=False)


def test_a_claim_for_a_machine_fits_on_a_gpu_that_is_free_and_says_which() -> None:
    done = explain("vm", *published(ONE, TWO), claim("other", has="gpu-vfio-1"), claim("vm"))
    assert done.return_value == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ResourceClaim team/vm waits, and fits on 1 of 1 node (hgx)")
    assert f"    {DRIVER}/hgx/gpu-vfio-2: would be allocated" in lines


def test_each_gpu_that_a_machine_cannot_have_has_its_reason() -> None:
    lost = dataclasses.replace(passed(3), is_lost=True, problem="0000:83:00.0 is off the bus")
    against = taints.Against(
        verdicts={lost.key: found} if (found := passthrough.verdict(lost)) else {},
        unverified={TWO.key: "Scrubbing"},
    )
    done = explain("vm", *published(ONE, TWO, lost, against=against), claim("other", has="gpu-vfio-1"), claim("vm"))
    assert done.return_value == 1
    answer, *rest = done.stdout.splitlines()
    assert "wants 1 of 3 devices, and 0 fit" in answer
    assert f"    {DRIVER}/hgx/gpu-vfio-1: held by claim team/other" in rest
    assert any("gpu-vfio-2" in one and "fairlead.dev/gpu-unverified=Scrubbing" in one for one in rest), rest
    assert any("gpu-vfio-3" in one and "is not tolerated" in one for one in rest), rest


def test_a_claim_for_a_container_says_that_the_nodes_gpus_are_for_machines() -> None:
    done = explain("plain", *published(ONE), claim("plain", of="gpu.nvidia.com"))
    assert done.return_value == 1
    assert "type == 'gpu' is false" in done.stdout
    assert "gpu-vfio-1" in done.stdout
