"""Pods of tests: made, watched, read and removed through the real API server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from tools.cluster import api, image

DEFAULT = "default"
RESOURCE = "nvidia.com/gpu"
_ENDED = ("Succeeded", "Failed")

# Which nodes are there, and what opening each of the eight numbers says, also through a node made inside: containers
# have CAP_MKNOD by default, so only the device cgroup stands between them and their neighbours' GPUs.
LOOK = r"""
cd /tmp
for i in 0 1 2 3 4 5 6 7; do
  [ -e /dev/nvidia$i ] && echo "node $i"
  mknod made$i c 195 $i || echo "mknod $i failed"
  if (: < made$i) 2>why; then echo "open $i OK"
  elif grep -q 'No such device or address' why; then echo "open $i ENXIO"
  elif grep -q 'Operation not permitted' why; then echo "open $i EPERM"
  else echo "open $i $(cat why)"; fi
done
echo looked
"""


def looker(gpus: int) -> api.Object:
    """Return a container that looks at its GPUs, tells it in its log (`Space.sight` reads that) and stays."""
    return {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"{LOOK}\nexec sleep 3600"],
        "resources": {"limits": {RESOURCE: str(gpus)}},
    }


@dataclass(frozen=True)
class Sight:
    """What a container saw of the machine's GPUs."""

    nodes: frozenset[int]
    """Minor numbers of /dev/nvidiaN in it."""
    opens: dict[int, str]
    """ENXIO: the kernel let the open through to a driver that is not here; EPERM: the device cgroup refused."""


ALL: Final = frozenset(range(8))
"""Minor numbers of the node's GPUs."""


def assert_sees(sight: Sight, wanted: Collection[int]) -> None:
    """Hold a container to its GPUs: it has their nodes, opens them, and is refused every other number."""
    assert sight.nodes == set(wanted), sight
    assert {gpu for gpu, said in sight.opens.items() if said == "ENXIO"} == set(wanted), sight
    assert {gpu for gpu, said in sight.opens.items() if said == "EPERM"} == ALL - set(wanted), sight


def assert_sees_its_own(sight: Sight, count: int) -> None:
    """Hold a container to so many GPUs, whichever they are; see `assert_sees`."""
    assert len(sight.nodes) == count, sight
    assert_sees(sight, sight.nodes)


@dataclass(frozen=True)
class Space:
    """One namespace."""

    server: api.API
    namespace: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def start(self, name: str, script: str, *, gpus: int = 0, restart: str = "Never") -> None:
        """Create a pod of one busybox container."""
        limits = {RESOURCE: str(gpus)} if gpus else {}
        container = {
            "name": "main",
            "image": image.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": limits},
        }
        spec = {"restartPolicy": restart, "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.server.create(self.path, {"metadata": {"name": name}, "spec": spec})

    def start_looking(self, name: str, *, gpus: int) -> None:
        """Create a pod that looks at the GPUs, then stays."""
        self.start(name, f"{LOOK}\nexec sleep 3600", gpus=gpus)

    def get(self, name: str) -> api.Object:
        return self.server.get(f"{self.path}/{name}")

    def until(self, name: str, check: Callable[[api.Object], bool], *, what: str, timeout_s: float = 60) -> api.Object:
        """Wait until a pod is as `check` wants it."""

        def reached(items: list[api.Object]) -> api.Object | None:
            return next((item for item in items if item["metadata"]["name"] == name and check(item)), None)

        return self.server.until(self.path, reached, what=f"pod {name} {what}", timeout_s=timeout_s)

    def until_phase(self, name: str, phase: str) -> api.Object:
        """Wait for a phase; a pod that ended in another one never reaches it."""
        pod = self.until(name, lambda pod: pod["status"].get("phase") in {phase, *_ENDED}, what=f"is {phase}")
        assert pod["status"]["phase"] == phase, pod["status"]
        return pod

    def until_unschedulable(self, name: str, words: str = "", *, reason: str = "Unschedulable") -> str:
        """Wait until the scheduler refused a pod for a reason in a message with these words; return the message."""

        def refused(pod: api.Object) -> bool:
            condition = _condition(pod, "PodScheduled")
            return condition.get("reason") == reason and words in condition["message"]

        return str(_condition(self.until(name, refused, what="is refused"), "PodScheduled")["message"])

    def log(self, name: str, **options: str) -> str:
        return self.server.text(f"{self.path}/{name}/log", **options)

    def sight(self, name: str) -> Sight:
        """Return what a looking pod saw; waits until it has looked."""
        self.until_phase(name, "Running")
        return parse_sight(self.server.lines(f"{self.path}/{name}/log", follow="true"))

    def delete(self, name: str) -> None:
        """Remove a pod and wait until the kubelet is done with it."""
        self.server.delete(f"{self.path}/{name}")
        self.until_gone(name)

    def until_gone(self, name: str) -> None:
        def gone(items: list[api.Object]) -> bool | None:
            return True if all(item["metadata"]["name"] != name for item in items) else None

        self.server.until(self.path, gone, what=f"pod {name} is gone")

    def clear(self) -> None:
        """Remove every pod."""
        self.server.delete(self.path)
        self.server.until(self.path, lambda items: None if items else True, what="all pods are gone")


def parse_sight(text: Iterable[str]) -> Sight:
    """Return what `LOOK` printed; reads no further than its last line."""
    lines = [line.split() for line in itertools.takewhile(lambda line: line != "looked", text)]
    return Sight(
        nodes=frozenset(int(line[1]) for line in lines if line[0] == "node"),
        opens={int(line[1]): " ".join(line[2:]) for line in lines if line[0] == "open"},
    )


def container(pod: api.Object) -> tuple[str, int]:
    """Return id and restarts of a pod's container."""
    status = pod["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


def _condition(pod: api.Object, kind: str) -> api.Object:
    found = (item for item in pod["status"].get("conditions", []) if item["type"] == kind)
    return next(found, {})
