"""gVisor under containerd, as `fairlead runtime configure --gvisor` writes it: real shim and runsc, pods by CRI.

ENXIO is an open that gVisor handed on to a driver that is not here; nodes of other GPUs are not in the container.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from tests.cluster import cripod, enginehost, pods
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


async def test_containers_of_a_pod_share_a_sandbox_and_its_network_and_have_their_own_gpus_alone(
    host: enginehost.Host,
) -> None:
    """An init container, and a main one beside a sidecar: each has its own files, processes and devices."""
    async with host.kubelet() as kubelet:
        one = await cripod.run(
            kubelet.stub,
            "several",
            handler="gvisor",
            logs="/var/log/several",
            seen_at=host.one.disk / "var-log" / "several",
            cgroup=f"/{host.one.cgroup}",
        )
        kubelet.sandboxes.append(one.sandbox)
        await one.start("init", ["/bin/sh", "-c", "busybox dmesg | head -n 1; touch /made; ls /dev"])
        first = await one.wait("init")
        assert first.code == 0
        assert "Starting gVisor" in first.out
        assert "nvidia" not in first.out
        say = "ls / /dev; busybox ps | grep -c nc; while echo from-main | busybox nc -l -p 7000; do :; done"
        await one.start("main", ["/bin/sh", "-c", say], devices=["nvidia.com/gpu=0"])
        await one.wait_log("main", "nvidia0")
        hear = "ls / /dev; until busybox nc 127.0.0.1 7000; do sleep 0.2; done; exit 5"
        await one.start("side", ["/bin/sh", "-c", hear], devices=["nvidia.com/gpu=2"])
        side = await one.wait("side")
        assert side.code == 5, "a sidecar ends by itself, and main runs on"
        assert "from-main" in side.out, "they share the sandbox's network"
        main = one.log("main")
        for said, own, other in ((main, "nvidia0", "nvidia2"), (side.out, "nvidia2", "nvidia0")):
            words = said.split()
            assert own in words
            assert other not in words
            assert "made" not in words, "files are each container's own"
        done = await one.stub.run_in_container(one.containers["main"], ["/bin/busybox", "ls", "/proc"], limit_s=20)
        assert done.exit_code == 0
        sandboxes = [line for line in host.one.run("ps", "-eo", "args").splitlines() if "runsc-sandbox" in line]
        assert len(sandboxes) == 1, sandboxes


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
