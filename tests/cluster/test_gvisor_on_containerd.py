"""gVisor under containerd, as `fairlead runtime configure --gvisor` writes it: real shim and runsc, pods by CRI.

ENXIO is an open that gVisor handed on to a driver that is not here; nodes of other GPUs are not in the container.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from tests.cluster import enginehost, pods
from tools.cluster import build

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
KNOWN = "550.90.12"
"""A driver that this gVisor knows."""


@pytest.fixture(scope="module")
def host() -> Iterator[enginehost.Host]:
    folder = build.folder_of(build.GVISOR)
    if not (folder / "runsc").exists():
        pytest.skip("gVisor has not been built: tests/system/gvisor/setup.sh")
    with enginehost.booted("2") as one:
        one.write_main()
        one.write_specs()
        spec = json.loads(one.read(enginehost.SPEC))
        nodes = [node for device in spec["devices"] for node in device["containerEdits"]["deviceNodes"]]
        (where,) = {str(Path(node["hostPath"]).parent) for node in nodes}
        program = ("--gvisor", "--gvisor-program", str(folder / "runsc"), "--gvisor-dev", where)
        # A pod of these tests is on the machine's network, which gVisor's own stack must leave alone.
        flags = ("--gvisor-flag", f"nvproxy-driver-version={KNOWN}", "--gvisor-flag", "network=none")
        one.configure(*program, *flags)
        one.start()
        one.load_images()
        yield one


async def test_a_pod_on_gvisor_sees_its_own_gpus_nodes_and_no_siblings(host: enginehost.Host) -> None:
    async with host.kubelet() as kubelet:
        container = await kubelet.start(handler="gvisor", devices=["nvidia.com/gpu=0", "nvidia.com/gpu=2"])
        sight = await kubelet.sight(container)
        kernel = await kubelet.stub.run_in_container(container, ["/bin/busybox", "dmesg"], limit_s=20)
        assert b"Starting gVisor" in kernel.stdout
        assert sight.nodes == {0, 2}, sight
        assert {gpu for gpu, said in sight.opens.items() if said == "ENXIO"} == {0, 2}, sight


async def test_a_pod_without_gpus_on_gvisor_has_none(host: enginehost.Host) -> None:
    async with host.kubelet() as kubelet:
        sight = await kubelet.sight(await kubelet.start(handler="gvisor", env={"NVIDIA_VISIBLE_DEVICES": "all"}))
        assert not sight.nodes, sight
        assert "ENXIO" not in sight.opens.values(), sight


async def test_a_pods_annotations_change_nothing_of_it(host: enginehost.Host) -> None:
    async with host.kubelet() as kubelet:
        marks = {"dev.gvisor.flag.network": "host", "cdi.k8s.io/mine": "nvidia.com/gpu=1"}
        sight = await kubelet.sight(await kubelet.start(handler="gvisor", pod_annotations=marks))
        assert not sight.nodes, sight


async def test_a_pod_of_another_handler_runs_beside_it(host: enginehost.Host) -> None:
    async with host.kubelet() as kubelet:
        pods.assert_sees(await kubelet.sight(await kubelet.start(devices=["nvidia.com/gpu=1"])), {1})


async def test_what_is_taken_back_is_no_handler_any_more(host: enginehost.Host) -> None:
    assert "is configured" in host.fairlead("runtime", "check", "--engine", "containerd")
    host.fairlead("runtime", "unconfigure", "--engine", "containerd")
    host.restart()
    async with host.kubelet() as kubelet:
        with pytest.raises(errors.FairleadError, match="gvisor"):
            await kubelet.start(handler="gvisor")
