"""`fairlead runtime configure` before three releases of containerd and CRI-O, judged by what their containers can open.

GPUs are the simulated ones, with NVIDIA's numbers: ENXIO is an open that the kernel let through to a driver that is not
here, EPERM one that the device cgroup refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.gpu.allocation import enginesupport
from tests import kubeletcheckpoint
from tests.cluster import criohost, enginehost, pods

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]
BOOKS = "/etc/fairlead/state.json"
GONE = 'no runtime for "fairlead" is configured|failed to find runtime handler fairlead'
SECTIONS = {1: "io.containerd.grpc.v1.cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


def boot(engine: str) -> AbstractContextManager[enginehost.CRINode]:
    return criohost.booted() if engine == "crio" else enginehost.booted(engine)


@pytest.fixture(scope="module", params=["1.7", "2", "crio"])
def host(request: pytest.FixtureRequest) -> Iterator[enginehost.CRINode]:
    """An engine that our command configured; image requests are honoured, as on a machine with one owner."""
    with boot(request.param) as one:
        one.write_main()
        one.write_specs()
        one.configure()
        one.write_policy(imageRequests="honour")
        one.start()
        one.load_images()
        yield one


# CDI, by the engine itself


async def test_cdi_names_in_the_request_are_what_the_container_gets(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        container = await kubelet.start(devices=["nvidia.com/gpu=0", "nvidia.com/gpu=2"])
        pods.assert_sees(await kubelet.sight(container), {0, 2})


async def test_cdi_names_in_an_annotation_too(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        container = await kubelet.start(annotations={"cdi.k8s.io/fairlead_pod": "nvidia.com/gpu=1"})
        pods.assert_sees(await kubelet.sight(container), {1})


async def test_a_name_given_in_both_ways_counts_once(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        marks = {"cdi.k8s.io/fairlead_pod": "nvidia.com/gpu=3,nvidia.com/gpu=1"}
        container = await kubelet.start(devices=["nvidia.com/gpu=3"], annotations=marks)
        pods.assert_sees(await kubelet.sight(container), {1, 3})


async def test_a_name_nobody_defines_fails_and_is_named(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        with pytest.raises(errors.FairleadError, match=r"nvidia\.com/gpu=9"):
            await kubelet.start(devices=["nvidia.com/gpu=0", "nvidia.com/gpu=9"])


async def test_cdi_names_reach_a_container_of_our_handler_as_well(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        container = await kubelet.start(handler="fairlead", devices=["nvidia.com/gpu=2"])
        pods.assert_sees(await kubelet.sight(container), {2})


# the handler: the traditional way, by environment


@pytest.mark.parametrize("handler", ["fairlead", "nvidia"])
async def test_the_handler_gives_what_the_environment_asks_for(host: enginehost.CRINode, handler: str) -> None:
    async with host.kubelet() as kubelet:
        container = await kubelet.start(handler=handler, env={"NVIDIA_VISIBLE_DEVICES": "0,3"})
        pods.assert_sees(await kubelet.sight(container), {0, 3})


async def test_the_default_runtime_gives_nothing_for_the_environment(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        pods.assert_sees(await kubelet.sight(await kubelet.start(env={"NVIDIA_VISIBLE_DEVICES": "all"})), set())


async def test_an_unknown_gpu_stops_the_container_with_our_words(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        with pytest.raises(errors.FairleadError, match=r"no CDI spec defines nvidia\.com/gpu=8"):
            await kubelet.start(handler="fairlead", env={"NVIDIA_VISIBLE_DEVICES": "8"})


async def test_requests_of_images_are_ignored_unless_the_operator_says_otherwise(host: enginehost.CRINode) -> None:
    host.write_policy()
    try:
        async with host.kubelet() as kubelet:
            container = await kubelet.start(handler="fairlead", env={"NVIDIA_VISIBLE_DEVICES": "all"})
            pods.assert_sees(await kubelet.sight(container), set())
    finally:
        host.write_policy(imageRequests="honour")


async def test_what_the_kubelet_gave_counts_for_its_own_container_and_nobody_poses_as_it(
    host: enginehost.CRINode,
) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "0,3"}
    crio = {"io.kubernetes.pod.uid": "holder", "io.kubernetes.container.name": "main"}
    host.write(BOOKS, json.dumps(kubeletcheckpoint.document(kubeletcheckpoint.by_environment("holder", "0", "3"))))
    host.write_policy(allocations=BOOKS)
    try:
        async with host.kubelet() as kubelet:
            holder = await kubelet.start(uid="holder", handler="fairlead", env=env)
            pods.assert_sees(await kubelet.sight(holder), {0, 3})
            for marks in (
                {},
                crio,
                kubeletcheckpoint.identity("holder"),
                {**crio, **kubeletcheckpoint.identity("holder")},
            ):
                thief = await kubelet.start(handler="fairlead", env=env, annotations=marks)
                pods.assert_sees(await kubelet.sight(thief), set())
    finally:
        host.write_policy(imageRequests="honour")


@pytest.mark.parametrize("handler", ["fairlead", ""])
async def test_a_pods_own_annotation_gives_nothing(host: enginehost.CRINode, handler: str) -> None:
    async with host.kubelet() as kubelet:
        marks = {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}
        container = await kubelet.start(handler=handler, pod_annotations=marks)
        pods.assert_sees(await kubelet.sight(container), set())


async def test_the_handler_inherits_the_options_of_the_node_s_own_runtime(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        ids = {await kubelet.start(), await kubelet.start(handler="fairlead")}
        found = host.one.run("find", enginehost.RUNC_ROOT, "-name", "state.json").splitlines()
        assert ids <= {Path(line).parent.name for line in found}


# configured, checked, taken back


def test_nothing_is_stale_and_a_second_time_changes_nothing(host: enginehost.CRINode) -> None:
    assert "is configured" in host.fairlead("runtime", "check", "--engine", host.engine)
    assert host.configure() == "nothing to change\n"


@pytest.mark.parametrize("engine", ["1.7", "2", "crio"])
async def test_taken_back_the_handler_is_gone_and_pods_still_run(engine: str) -> None:
    with boot(engine) as host:
        host.write_main()
        host.write_specs()
        before = host.tree()
        host.configure()
        assert host.tree() != before
        host.fairlead("runtime", "unconfigure", "--engine", host.engine)
        assert host.tree() == before
        host.start()
        host.load_images()
        async with host.kubelet() as kubelet:
            with pytest.raises(errors.FairleadError, match=GONE):
                await kubelet.start(handler="fairlead")
            pods.assert_sees(await kubelet.sight(await kubelet.start()), set())


# a node that has NVIDIA's toolkit: over to ours, and back

NVIDIAS = """\
version = {version}

[plugins."{section}".containerd]
default_runtime_name = "nvidia"

[plugins."{section}".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"

[plugins."{section}".containerd.runtimes.nvidia.options]
BinaryName = "/opt/nvidia-toolkit/nvidia-container-runtime"
"""
STAND_IN = '#!/bin/sh\necho "$0 $*" >> /run/nvidia-was-here\nexec runc "$@"\n'


@pytest.mark.parametrize(("release", "version"), [("1.7", 2), ("2", 3)], ids=["1.7", "2"])
async def test_a_node_with_nvidias_toolkit_moves_over_and_back(release: str, version: int) -> None:
    with enginehost.booted(release) as host:
        host.write_main()
        host.write_specs()
        host.write_policy(imageRequests="honour")
        host.write("/run/toolkit/nvidia-container-runtime", STAND_IN)
        host.one.run("chmod", "755", "/run/toolkit/nvidia-container-runtime")
        # As its own configure leaves a node: one import, one drop-in. On 1.x that one holds the whole section.
        main = host.read(enginehost.MAIN)
        theirs = NVIDIAS.format(version=version, section=SECTIONS[version])
        theirs = theirs.replace("/opt/nvidia-toolkit", "/run/toolkit")
        if version == 2:
            section = main[main.index("  restrict_oom") : main.index("  [plugins")]
            theirs += f'\n[plugins."{SECTIONS[version]}"]\n{section}'
        imports = 'imports = ["/etc/containerd/conf.d/*.toml"]'
        host.write(enginehost.MAIN, main.replace("oom_score = ", f"{imports}\noom_score = "))
        host.write("/etc/containerd/conf.d/99-nvidia.toml", theirs)
        before = host.tree()
        host.start()
        host.load_images()
        async with host.kubelet() as kubelet:
            pods.assert_sees(await kubelet.sight(await kubelet.start(handler="nvidia")), set())
        passed = host.read("/run/nvidia-was-here")
        assert " create " in passed

        host.configure()
        host.restart()
        passed = host.read("/run/nvidia-was-here")
        async with host.kubelet() as kubelet:
            asked = {"NVIDIA_VISIBLE_DEVICES": "1"}
            for handler in ("nvidia", ""):
                container = await kubelet.start(handler=handler, env=asked)
                pods.assert_sees(await kubelet.sight(container), {1})
        assert host.read("/run/nvidia-was-here") == passed

        host.fairlead("runtime", "unconfigure", "--engine", "containerd")
        assert host.tree() == before
        host.restart()
        async with host.kubelet() as kubelet:
            await kubelet.start(handler="nvidia")
        assert host.read("/run/nvidia-was-here").startswith(passed + "/run/toolkit/nvidia-container-runtime")


# how each release puts the files together, asked of itself


@pytest.mark.parametrize(("release", "version"), [("1.6", 1), ("1.6", 2), ("1.7", 1), ("1.7", 2), ("2", 2), ("2", 3)])
def test_containerd_itself_reads_what_was_meant(release: str, version: int) -> None:
    with enginehost.booted(release) as host:
        host.write(enginehost.MAIN, enginehost.main_config(version))
        before = host.dump()
        host.configure("--set-as-default", *(["--no-enable-cdi"] if release == "1.6" else []))
        after = host.dump()
    name = SECTIONS[3] if release == "2" else SECTIONS[version]
    theirs, ours = before["plugins"][name], after["plugins"][name]
    handler = ours["containerd"]["runtimes"].pop("fairlead")
    assert ours["containerd"]["runtimes"].pop("nvidia") == handler
    assert handler["options"]["BinaryName"] == f"{enginehost.LIBEXEC}/fairlead-runtime"
    assert handler["options"]["Root"] == enginehost.RUNC_ROOT
    assert ours["containerd"].pop("default_runtime_name") == "fairlead"
    assert theirs["containerd"].pop("default_runtime_name") == "runc"
    if release != "1.6":
        assert ours.pop("enable_cdi") is True
        theirs.pop("enable_cdi")
        assert ours.pop("cdi_spec_dirs") == theirs.pop("cdi_spec_dirs")
    assert without_imports(after) == without_imports(before)


_V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\nruntime_type = "kata"\n'
_V3 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]\nruntime_type = "kata"\n'
_IMPORT = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'


@pytest.mark.parametrize("release", ["1.7", "2"])
@pytest.mark.parametrize(
    ("main", "other"),
    [("", ""), ("disabled_plugins = []\n", ""), (f"version = 2\n{_IMPORT}", _V2), (_IMPORT, _V2)],
)
def test_files_without_a_version_are_read_as_the_model_says(release: str, main: str, other: str) -> None:
    _assert_both_count(release, main, other)


@pytest.mark.parametrize(
    ("main", "other"), [(f"version = 2\n{_IMPORT}", _V3), (f"version = 3\n{_IMPORT}", _V2), (_IMPORT, _V3)]
)
def test_files_of_two_versions_are_read_as_the_model_says(main: str, other: str) -> None:
    _assert_both_count("2", main, other)


def _assert_both_count(release: str, main: str, other: str) -> None:
    with enginehost.booted(release) as host:
        host.write(enginehost.MAIN, main)
        if other:
            host.write("/etc/containerd/conf.d/99-other.toml", other)
        host.configure()
        runtimes = host.dump()["plugins"][SECTIONS[3 if release == "2" else 2]]["containerd"]["runtimes"]
    assert {"fairlead", "nvidia"} <= runtimes.keys()
    assert ("kata" in runtimes) is bool(other)


def test_crio_itself_reads_what_was_meant() -> None:
    with criohost.booted() as host:
        host.write_main()
        before = host.dump()
        host.configure("--set-as-default")
        after = host.dump()
    handler = after["runtimes"].pop("fairlead")
    assert after["runtimes"].pop("nvidia") == handler
    assert handler["runtime_path"] == f"{enginehost.LIBEXEC}/crio/fairlead-runtime"
    theirs = {"runtime_path": "/usr/sbin/runc", "runtime_type": ""}  # which means "oci"
    assert {**handler, **theirs} == before["runtimes"]["runc"]
    assert handler["runtime_root"] == enginehost.RUNC_ROOT
    assert (before.pop("default_runtime"), after.pop("default_runtime")) == ("runc", "fairlead")
    assert after == before


def without_imports(dump: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in dump.items() if key != "imports"}


# 1.6: takes the request, injects nothing, says it went well


@pytest.fixture(scope="module")
def old_host() -> Iterator[enginehost.Host]:
    with enginehost.booted("1.6") as one:
        one.write_main()
        one.write_specs()
        one.start()
        one.load_images()
        yield one


async def test_1_6_starts_the_container_without_its_devices_and_is_refused(old_host: enginehost.CRINode) -> None:
    async with old_host.kubelet() as kubelet:
        container = await kubelet.start(devices=["nvidia.com/gpu=0"])
        pods.assert_sees(await kubelet.sight(container), set())
        said = await kubelet.stub.version()
    with pytest.raises(errors.Unavailable, match=r"containerd 1\.6\.\d+ does not inject CDI devices"):
        enginesupport.check_node(f"{said.runtime_name}://{said.runtime_version}")
    done = old_host.try_fairlead("runtime", "configure", "--engine", "containerd", "--folder", enginehost.LIBEXEC)
    assert done.returncode == 6
    assert "--no-enable-cdi" in done.stderr
    assert old_host.one.run("ls", "/etc/containerd").split() == ["config.toml"]


async def test_on_1_6_the_shim_gives_what_the_kubelet_annotates(old_host: enginehost.CRINode) -> None:
    old_host.configure("--no-enable-cdi")
    old_host.restart()
    async with old_host.kubelet() as kubelet:
        marks = {"cdi.k8s.io/fairlead_pod": "nvidia.com/gpu=1"}
        container = await kubelet.start(handler="fairlead", annotations=marks)
        pods.assert_sees(await kubelet.sight(container), {1})
        with pytest.raises(errors.FairleadError, match=r"no CDI spec defines nvidia\.com/gpu=9"):
            await kubelet.start(handler="fairlead", annotations={"cdi.k8s.io/x_y": "nvidia.com/gpu=9"})


async def test_a_node_whose_engine_injects_passes(host: enginehost.CRINode) -> None:
    async with host.kubelet() as kubelet:
        said = await kubelet.stub.version()
        enginesupport.check_node(f"{said.runtime_name}://{said.runtime_version}")
