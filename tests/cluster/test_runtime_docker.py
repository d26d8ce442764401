"""`fairlead runtime configure --engine docker` before dockerd 20.10 and 29, judged by what their containers can open.

GPUs are the simulated ones, with NVIDIA's numbers: ENXIO is an open that the kernel let through to a driver that is not
here, EPERM one that the device cgroup refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import dockerhost, enginehost, pods

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
ONE = {"NVIDIA_VISIBLE_DEVICES": "1"}
EVERY = {"NVIDIA_VISIBLE_DEVICES": "all"}
MINE: dict[str, dict[str, object]] = {
    "20.10": {"labels": ["mine=1"]},
    # Debian's runc does not know time namespaces, docker 29 wants them.
    "29": {"labels": ["mine=1"], "features": {"time-namespaces": False}},
}
RUNTIMES: dict[str, dict[str, object]] = {
    "20.10": {"path": "/usr/sbin/runc", "runtimeArgs": ["--log-format=json"]},
    "29": {"runtimeType": "io.containerd.runc.v2", "options": {"Root": enginehost.RUNC_ROOT}},
}
"""A node's own: by path, and as newer files name one."""
INJECTS = {"20.10": ["--no-enable-cdi"], "29": []}


def prepare(node: dockerhost.Docker, **keys: object) -> str:
    """Give a node its GPUs and a file of its own, and return that."""
    text = json.dumps({**MINE[node.release], **keys}, indent=4)  # no newline at its end: it stays so
    node.write_specs()
    node.write_policy(imageRequests="honour")
    node.write(dockerhost.CONFIG, text)
    return text


@pytest.fixture(scope="module", params=["20.10", "29"])
def docker(request: pytest.FixtureRequest) -> Iterator[dockerhost.Docker]:
    """A dockerd that our command configured; image requests are honoured, as on a machine with one owner."""
    with dockerhost.booted(request.param) as one:
        prepare(one, **{"default-runtime": "mine", "runtimes": {"mine": RUNTIMES[one.release]}})
        one.configure(*INJECTS[one.release])
        # What dockers up to 28.2 ask for, and 29 looks for before it turns `--gpus` into CDI.
        one.one.run(
            "/bin/sh", "-ec", f"mkdir {dockerhost.HOOKS}; ln -s {enginehost.LIBEXEC}/fairlead-hook {dockerhost.HOOK}"
        )
        one.start()
        one.load_image()
        yield one


@pytest.mark.parametrize("handler", ["fairlead", "nvidia"])
def test_the_handler_gives_what_the_environment_asks_for(docker: dockerhost.Docker, handler: str) -> None:
    pods.assert_sees(docker.sight(runtime=handler, env={"NVIDIA_VISIBLE_DEVICES": "0,3"}), {0, 3})


def test_nothing_by_default(docker: dockerhost.Docker) -> None:
    pods.assert_sees(docker.sight(env=EVERY), set())
    pods.assert_sees(docker.sight(runtime="fairlead"), set())
    docker.write_policy()
    try:
        pods.assert_sees(docker.sight(runtime="fairlead", env=EVERY), set())
    finally:
        docker.write_policy(imageRequests="honour")


def test_an_unknown_gpu_stops_the_container_with_our_words(docker: dockerhost.Docker) -> None:
    with pytest.raises(dockerhost.Refused, match=r"no CDI spec defines nvidia\.com/gpu=8"):
        docker.run(runtime="fairlead", env={"NVIDIA_VISIBLE_DEVICES": "8"})


def test_nothing_is_stale_and_a_second_time_changes_nothing(docker: dockerhost.Docker) -> None:
    assert "is configured" in docker.fairlead("runtime", "check", "--engine", "docker")
    assert docker.configure(*INJECTS[docker.release]) == "nothing to change\n"


def test_the_handler_inherits_from_the_node_s_own_runtime(docker: dockerhost.Docker) -> None:
    pods.assert_sees(docker.sight(runtime="fairlead", env=ONE), {1})
    found = json.loads(docker.read(dockerhost.CONFIG))["runtimes"]
    if docker.release == "29":
        assert found["fairlead"]["options"]["Root"] == enginehost.RUNC_ROOT
        assert docker.one.run("ls", enginehost.RUNC_ROOT).split() == ["moby"]
    else:
        assert found["fairlead"]["runtimeArgs"] == ["--log-format=json"]
        assert "/usr/sbin/runc" in docker.read(f"{enginehost.LIBEXEC}/docker/fairlead-runtime")


def test_cdi_devices_are_given_by_29_and_refused_by_20_10(docker: dockerhost.Docker) -> None:
    asks = [dockerhost.cdi("nvidia.com/gpu=0", "nvidia.com/gpu=2")]
    if docker.release == "29":
        pods.assert_sees(docker.sight(asks=asks), {0, 2})
        pods.assert_sees(docker.sight(asks=asks, runtime="fairlead"), {0, 2})
        with pytest.raises(dockerhost.Refused, match=r"unresolvable CDI devices nvidia\.com/gpu=9"):
            docker.run(asks=[dockerhost.cdi("nvidia.com/gpu=9")])
    else:
        with pytest.raises(dockerhost.Refused, match='could not select device driver "cdi"'):
            docker.run(asks=asks)
        before = docker.tree()
        done = docker.try_fairlead("runtime", "configure", "--engine", "docker", "--folder", enginehost.LIBEXEC)
        assert done.returncode == 6
        assert "docker 20.10.24 does not inject CDI devices" in done.stderr
        assert "--no-enable-cdi" in done.stderr
        assert docker.tree() == before


def test_an_annotation_of_29_reaches_the_shim(docker: dockerhost.Docker) -> None:
    sight = docker.sight(runtime="fairlead", annotations={"cdi.k8s.io/mine": "nvidia.com/gpu=3"})
    pods.assert_sees(sight, {3} if docker.release == "29" else set())


def test_gpus_is_cdi_on_29_where_a_program_has_the_name_that_docker_looks_for(docker: dockerhost.Docker) -> None:
    if docker.release == "29":
        pods.assert_sees(docker.sight(asks=[dockerhost.gpus("1")]), {1})
        pods.assert_sees(docker.sight(asks=[dockerhost.gpus()]), {0, 1, 2, 3})
    else:
        with pytest.raises(dockerhost.Refused, match="could not select device driver"):
            docker.run(asks=[dockerhost.gpus("1")])


@pytest.mark.parametrize("release", ["20.10", "29"])
def test_what_a_reload_does_and_what_needs_a_restart(release: str) -> None:
    with dockerhost.booted(release) as node:
        features = {**(MINE["29"]["features"] if release == "29" else {}), "cdi": False}  # type: ignore[dict-item]  # JSON
        mine = prepare(node, features=features)
        before = node.tree()
        node.start()
        node.load_image()
        with pytest.raises(dockerhost.Refused, match="fairlead"):
            node.run(runtime="fairlead", env=ONE)

        assert "systemctl restart docker" in node.configure("--set-as-default", *INJECTS[release])
        node.reload()
        assert node.info()["DefaultRuntime"] == "fairlead"
        pods.assert_sees(node.sight(env=ONE), {1})
        if release == "29":
            with pytest.raises(dockerhost.Refused, match='could not select device driver "cdi"'):
                node.run(asks=[dockerhost.cdi("nvidia.com/gpu=2")])
            node.restart()
            pods.assert_sees(node.sight(asks=[dockerhost.cdi("nvidia.com/gpu=2")]), {2})

        node.fairlead("runtime", "unconfigure", "--engine", "docker")
        assert node.read(dockerhost.CONFIG) == mine
        node.one.run("rm", "-f", "/etc/docker/key.json")  # dockerd's own
        assert node.tree() == before
        node.reload()
        assert "fairlead" in node.info()["Runtimes"]
        node.restart()
        assert "fairlead" not in node.info()["Runtimes"]
        pods.assert_sees(node.sight(env=ONE), set())
        with pytest.raises(dockerhost.Refused, match="fairlead"):
            node.run(runtime="fairlead", env=ONE)
