"""The example driver on a real kubelet: what the embedded one is tested with is what a real one speaks."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.wire.kubelet import drahealth, draplugin
from tests.cluster import pods
from tests.unit.node.kubelet.dra.exampledriver import DRIVER
from tools.cluster import api, home, image, machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
_RESOURCE = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCE}/namespaces/default/resourceclaims"
_SLICES = f"{_RESOURCE}/resourceslices"
_CLASSES = f"{_RESOURCE}/deviceclasses"


class Driver:
    """The driver's process."""

    def __init__(self, cluster: home.Cluster, server: api.API) -> None:
        self.cluster, self.server = cluster, server
        self.process: machine.Process | None = None

    def start(self, versions: str) -> None:
        """Start it; returns once its devices are published and its kubelet knows it."""
        before = self.log().count("registered:")
        root = Path(__file__).parents[2]
        program = (
            "/usr/bin/env",
            f"PYTHONPATH={root}/src:{root}",
            sys.executable,
            "-m",
            "tests.cluster.example_driver",
        )
        arguments = (*program, str(self.cluster.kubeconfig), self.cluster.node, versions)
        self.process = self.cluster.host.start(arguments, self.cluster.log("example-driver"))
        self.until(lambda log: log.count("registered:") > before, what="it is registered")
        self.server.until(_SLICES, lambda items: items or None, what="its devices are published", timeout_s=60)

    def stop(self) -> None:
        if self.process is not None:
            assert self.process.end(signal.SIGTERM, timeout_s=15), self.log()
        self.process = None

    def log(self) -> str:
        path = self.cluster.log("example-driver")
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, holds: object, *, what: str, timeout_s: float = 60) -> None:
        """Wait for a word in its log; the outside of another process has no event to wait for."""
        deadline = time.monotonic() + timeout_s
        assert callable(holds)
        while not holds(self.log()):
            assert time.monotonic() < deadline, f"{what}: {self.log()[-3000:]}"
            time.sleep(0.05)


@pytest.fixture
def driver(cluster: home.Cluster, server: api.API, space: pods.Space) -> Iterator[Driver]:
    expression = f"device.driver == '{DRIVER}'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    server.create(_CLASSES, {"metadata": {"name": DRIVER}, "spec": spec})
    one = Driver(cluster, server)
    yield one
    space.clear()  # while the driver is there: a pod waits for it to end
    one.stop()
    for path in (_CLAIMS, _SLICES, _CLASSES):
        server.delete(path)


def run(space: pods.Space, name: str, script: str) -> None:
    requests = [{"name": "cpus", "exactly": {"deviceClassName": DRIVER}}]
    space.server.create(_CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    container = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"claims": [{"name": "cpus"}]},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,  # 0 would be a deletion by force, which waits for nobody
        "resourceClaims": [{"name": "cpus", "resourceClaimName": name}],
        "containers": [container],
    }
    space.server.create(space.path, {"metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize("versions", [f"{draplugin.V1},{drahealth.V1ALPHA1}", draplugin.V1BETA1])
def test_a_pod_has_the_devices_that_the_driver_prepared(driver: Driver, space: pods.Space, versions: str) -> None:
    driver.start(versions)
    name = f"one-{versions.partition('.')[0]}"
    run(space, name, "env | grep DEVICE_CPU")
    space.until_phase(name, "Succeeded")
    assert space.log(name).startswith("DEVICE_CPU_")
    driver.until(lambda log: '"unprepare"' in log, what="its claim is given back")
    calls = [line for line in driver.log().splitlines() if f'"{name}"' in line]
    assert ['"prepare"' in line for line in calls] == [True, False]


def test_the_end_of_a_pod_waits_for_its_driver(driver: Driver, space: pods.Space) -> None:
    driver.start(draplugin.V1)
    run(space, "waits", "exec sleep 3600")
    space.until_phase("waits", "Running")
    driver.stop()
    space.server.delete(f"{space.path}/waits")
    time.sleep(5)  # far longer than its end takes where the driver is there
    assert space.get("waits")["metadata"]["deletionTimestamp"]
    driver.start(draplugin.V1)
    space.until_gone("waits")
