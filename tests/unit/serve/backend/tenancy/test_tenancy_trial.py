"""The trial of a tenancy's network on a cluster: what pods wrote is judged, and no pod is left behind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.kernel.programs import tenancyprobe
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.tenancy import trial
from fairlead.store import subresource
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.port import Selector
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta


def tries_of(pod: core.Pod) -> list[list[str]]:
    """Return the words of what a pod tries, in the shell's form or in Python's: how often, by what, and where."""
    program, *_, how, last = pod.spec.containers[0].command or ("none", "", "")
    if program == "python3":
        return [list(map(str, words)) for words in json.loads(last)] if how == "try" else []
    lines = [line for line in last.splitlines() if line.startswith("try ")]
    return [line.replace('"', "").split()[2:] for line in lines]


class Cluster(MemoryStore):
    """A store whose pods run at once, or have ended, and whose namespaces may be full."""

    def __init__(self) -> None:
        super().__init__()
        self.full: set[str] = set()
        self.images: list[str] = []
        self.programs: list[str] = []

    async def create(self, item: Any) -> Any:
        if isinstance(item, core.Pod):
            if item.metadata.namespace in self.full:
                raise errors.Denied("exceeded quota: tenancy", reason="Forbidden")
            self.images.append(item.spec.containers[0].image)
        made = await super().create(item)
        if not isinstance(item, core.Pod):
            return made
        self.programs += item.spec.containers[0].command[:1]
        is_client = bool(tries_of(item))
        ips = (core.PodIP(ip="10.88.0.7"), core.PodIP(ip="fd00::7"), core.PodIP(ip='"; reboot; "'))
        status = core.PodStatus(phase="Succeeded" if is_client else "Running", pod_ips=ips)
        return await self.update_status(msgspec.structs.replace(made, status=status))


class Logs:
    """What clients wrote: `says` decides by the words of each try."""

    def __init__(self, says: Callable[[list[str]], str]) -> None:
        self.says = says
        self.scripts: list[str] = []

    async def logs(self, pod: core.Pod, container: str, options: subresource.LogOptions) -> AsyncGenerator[bytes, None]:
        script = pod.spec.containers[0].command[-1]
        self.scripts.append(script)
        for number, words in enumerate(tries_of(pod)):
            if word := self.says(words):
                yield f"noise\nfairlead {number} {word}\n".encode()


async def stand(store: MemoryStore, name: str) -> Tenancy:
    """Store a tenancy that is ready."""
    item = await store.create(Tenancy(metadata=meta.ObjectMeta(name=name)))
    good = {
        one: baseline.condition(item, one, None, good="Good")
        for one in (kind.NAMESPACE_READY, kind.NETWORK_ISOLATED, kind.QUOTA_APPLIED)
    }
    status = baseline.status(item, good, kind.NetworkStatus())
    return await store.update_status(msgspec.structs.replace(item, status=status))


@pytest.fixture
def store() -> Cluster:
    return Cluster()


def isolated(words: list[str]) -> str:
    """Say what a cluster says where the policies are enforced: what may be reached answers, four times tried."""
    return "reached" if words[0] == "4" else "refused"


async def test_a_tenancy_is_isolated_where_only_what_it_may_reach_answers(store: Cluster) -> None:
    red, blue = [await stand(store, name) for name in ("red", "blue")]
    logs = Logs(isolated)
    found = await trial.ClusterTrial(store, logs).test(red, (red, blue), image="busybox")
    assert found.problem == ""
    assert found.is_isolated
    assert found.works
    pairs = {(one.source, one.target) for one in found.attempts}
    assert {("red", "blue"), ("blue", "red"), ("red", "(of no tenancy)"), ("(of no tenancy)", "red")} <= pairs
    assert {one.family for one in found.attempts if one.target == "blue"} == {"IPv4", "IPv6"}
    assert set(store.images) == {"busybox"}
    assert set(store.programs) == {"sh"}
    assert (await store.list(core.Pod)).items == ()
    assert not any("reboot" in script for script in logs.scripts)  # of an address that is not one


async def test_one_border_that_lets_packets_through_is_enough(store: Cluster) -> None:
    red, blue = [await stand(store, name) for name in ("red", "blue")]
    logs = Logs(lambda words: "reached" if "169.254.169.254" in words else isolated(words))
    found = await trial.ClusterTrial(store, logs).test(red, (red, blue), image="busybox")
    assert not found.is_isolated
    assert [one.target for one in found.attempts if one.is_breach] == ["metadata service"]


async def test_a_place_without_room_is_left_out_by_name_and_the_tenancys_own_is_a_problem(store: Cluster) -> None:
    red, blue = [await stand(store, name) for name in ("red", "blue")]
    store.full.add(baseline.namespace_name(blue))
    found = await trial.ClusterTrial(store, Logs(isolated)).test(red, (red, blue), image="busybox")
    assert found.left_out == ("blue: exceeded quota: tenancy",)
    assert found.is_isolated
    store.full.add(baseline.namespace_name(red))
    found = await trial.ClusterTrial(store, Logs(isolated)).test(red, (red, blue), image="busybox")
    assert not found.is_isolated
    assert "exceeded quota" in found.problem


async def test_what_was_not_tried_is_not_called_refused(store: Cluster) -> None:
    red = await stand(store, "red")
    logs = Logs(lambda words: "" if words[1] == "dns" else isolated(words))
    found = await trial.ClusterTrial(store, logs).test(red, (red,), image="busybox")
    assert not found.is_isolated
    assert "did not try everything" in found.problem
    assert (await store.list(core.Pod)).items == ()


async def test_a_tenancy_that_cannot_send_packets_is_not_called_isolated(store: Cluster) -> None:
    red = await stand(store, "red")
    tried = trial.ClusterTrial(store, Logs(isolated))
    waiting = msgspec.structs.replace(red, status=kind.TenancyStatus())
    assert "is not ready" in (await tried.test(waiting, (red,))).problem
    assert "is suspended" in (await tried.test(baseline.with_suspended(red, suspended=True), (red,))).problem
    found = await tried.test(red, (red,))
    assert "--image busybox" in found.problem
    assert not found.is_isolated


async def test_the_image_is_that_of_fairleads_own_pods_and_what_a_killed_trial_left_goes_first(store: Cluster) -> None:
    red = await stand(store, "red")
    own = meta.ObjectMeta(name="agent", namespace="fairlead", labels={"app.kubernetes.io/part-of": "fairlead"})
    image = core.PodSpec(containers=(core.Container(name="agent", image="host/fairlead:1"),))
    await store.create(core.Pod(metadata=own, spec=image))
    left = meta.ObjectMeta(name="fl-probe-old", namespace=baseline.namespace_name(red), labels=trial.PROBE)
    await store.create(core.Pod(metadata=left, spec=core.PodSpec(containers=image.containers)))
    found = await trial.ClusterTrial(store, Logs(isolated)).test(red, (red,))
    assert found.is_isolated
    assert set(store.images) == {"host/fairlead:1"}
    assert set(store.programs) == {"python3"}  # the image has no shell
    (pod,) = (await store.list(core.Pod, Selector())).items
    assert pod.metadata.name == "agent"


def test_the_program_of_our_own_image_reaches_what_answers_and_nothing_else() -> None:
    python = (sys.executable, "-I", "-S", str(tenancyprobe.__file__))
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        silent, port = (str(one.getsockname()[1]) for one in (taken, free))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        open_port = str(listening.getsockname()[1])
        server = subprocess.Popen((*python, "serve", port, "secret"))
        try:
            tries = [
                [20, "get", "127.0.0.1", port, "secret"],
                [1, "get", "127.0.0.1", port, "another"],
                [1, "tcp", "$HERE", open_port],
                [1, "tcp", "127.0.0.1", silent],
                [1, "tcp", "$NOT_SET", open_port + "x"],
                [1, "dns", "localhost"],
            ]
            argv = (*python, "try", json.dumps(tries))
            done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"HERE": "127.0.0.1"})
        finally:
            server.kill()
            server.wait()
    said = [line.split()[-1] for line in done.stdout.splitlines()]
    assert said == ["reached", "refused", "reached", "refused", "refused", "reached"]
