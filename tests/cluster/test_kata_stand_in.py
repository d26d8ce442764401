"""Kata's stand-in under the real containerd: a pod's command runs in a machine of its own, and ends as it ended there.

No registry has Kata. What stands in for its shim is `tests/katastandin`; engine, its shim for runc, QEMU (in software)
and the guest's kernel are real. GPUs are not here: `tests/system/test_hgx_kata.py` has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from tests.cluster import cripod, enginehost, katahost

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
OPEN = "kata-open"
"""A handler that lets every annotation through, as none of ours does."""
KIND = "nvidia.com/pgpu"


@pytest.fixture(scope="module")
def host() -> Iterator[enginehost.Host]:
    with katahost.booted(accelerator="tcg") as one:
        text = one.read(enginehost.MAIN) + katahost.handler(
            f"{katahost.FOLDER}/runtime", pod_annotations=["*", "*/*"]
        ).replace(katahost.HANDLER, OPEN)
        one.write(enginehost.MAIN, text)
        one.restart()
        yield one


@contextlib.asynccontextmanager
async def pod(
    host: enginehost.Host, name: str, *, handler: str = katahost.HANDLER, **more: Any
) -> AsyncIterator[cripod.Pod]:
    async with host.kubelet() as kubelet:
        where = f"/var/log/{name}"
        made = await cripod.run(
            kubelet.stub,
            name,
            handler=handler,
            logs=where,
            seen_at=host.one.disk / "var-log" / name,
            cgroup=f"/{host.one.cgroup}",
            **more,
        )
        try:
            yield made
        finally:
            await made.remove()


def state(host: enginehost.Host, name: str, file: str) -> Any:
    return json.loads(host.read(f"{katahost.STATE}/k8s.io/{name}/{file}"))


def emulators(host: enginehost.Host) -> list[str]:
    """Return the command lines of QEMU in the machine."""
    script = "for one in /proc/[0-9]*; do tr '\\0' ' ' <$one/cmdline 2>/dev/null; echo; done"
    return [line for line in host.one.run("/bin/sh", "-c", script).splitlines() if line.startswith("/usr/bin/qemu")]


async def test_a_pods_command_runs_in_a_machine_of_its_own_with_output_exit_code_and_files(
    host: enginehost.Host,
) -> None:
    async with pod(host, "runs") as one:
        script = "uname -r; cat /proc/1/comm; echo wrong >&2; ls /bin/busybox; id -u; echo $PATH; exit 7"
        await one.start("main", ["/bin/sh", "-c", script])
        ended = await one.wait("main")
        kernel, first, *rest = ended.out.splitlines()
        assert ended.code == 7
        assert kernel != os.uname().release
        assert kernel.endswith("cloud-amd64")
        assert first == "init", "the guest's process 1, not the host's"
        assert rest == ["/bin/busybox", "0", "/usr/local/bin:/usr/bin:/bin"]
        assert ended.err == "wrong\n"
        # A second container of the pod is in the same machine, and both end apart.
        (line,) = emulators(host)
        assert "accel=tcg" in line
        await one.start("second", ["/bin/sh", "-c", "uname -r; exec sleep 3600"])
        assert (await one.wait_log("second", "\n")).strip() == kernel
        done = await one.stub.run_in_container(
            one.containers["second"], ["/bin/sh", "-c", "echo in; exit 3"], limit_s=30
        )
        assert (done.stdout, done.exit_code) == (b"in\n", 3)
        with pytest.raises(errors.FairleadError, match="No such file"):
            await one.start("absent", ["/no/such/program"])
        assert len(emulators(host)) == 1
        phases = state(host, one.sandbox, "phases.json")
        assert [name for name, _, _ in phases] == ["devices", "QEMU", "firmware", "kernel", "init"]
        assert all(begin <= end for _, begin, end in phases)
    assert emulators(host) == []
    assert host.one.run("ls", f"{katahost.STATE}/k8s.io") == ""


async def test_signals_reach_the_guest_and_a_machine_that_ends_takes_its_containers_along(
    host: enginehost.Host,
) -> None:
    async with pod(host, "signals") as one:
        script = "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
        await one.start("asked", ["/bin/sh", "-c", script])
        await one.start("killed", ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
        await one.start("stays", ["/bin/sleep", "3600"])
        for name in ("asked", "killed"):
            await one.wait_log(name, "ready")
        await one.stub.stop_container(one.containers["asked"], grace_s=30)
        assert await one.wait("asked") == cripod.Ended(code=9, out="ready\nbye\n", err="")
        await one.stub.stop_container(one.containers["killed"], grace_s=1)
        assert (await one.wait("killed")).code == 128 + signal.SIGKILL
        host.one.run("kill", "-9", host.read(f"{katahost.STATE}/k8s.io/{one.sandbox}/emulator.pid"))
        assert (await one.wait("stays")).code == 255
        assert emulators(host) == []


async def test_the_engine_ends_the_machine_of_a_process_that_was_killed(host: enginehost.Host) -> None:
    """QEMU is no part of it and runs on, as Kata's does, until containerd has the sandbox deleted."""
    async with pod(host, "outlives") as one:
        await one.start("main", ["/bin/sleep", "3600"])
        host.one.run("kill", "-9", str(state(host, one.sandbox, "state.json")["pid"]))
        assert (await one.wait("main")).code == 255
        until = time.monotonic() + 60
        while emulators(host):
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
    assert host.one.run("ls", f"{katahost.STATE}/k8s.io") == ""


async def test_no_annotation_of_a_tenant_reaches_it_through_our_handler(host: enginehost.Host) -> None:
    marks = {
        "cdi.k8s.io/mine": f"{KIND}=1",
        "io.katacontainers.config.hypervisor.kernel_params": "agent.debug_console",
        "io.katacontainers.config_path": "/tmp/mine.toml",
    }
    async with pod(host, "marked", annotations=marks) as one:
        assert state(host, one.sandbox, "plugged.json") == {"names": [], "nodes": [], "functions": []}
        (line,) = emulators(host)
        assert "debug_console" not in line
    # Where a handler lets them through, each is refused or believed, which is why ours lets none through.
    for key, value in marks.items():
        wanted = "unresolvable CDI devices" if key.startswith("cdi") else "is not enabled"
        with pytest.raises(errors.FairleadError, match=wanted):
            async with pod(host, "open", handler=OPEN, annotations={key: value}):
                pass
    assert emulators(host) == []


async def test_devices_are_the_kubelets_and_no_others(host: enginehost.Host) -> None:
    held = {"unresolved": {KIND: ["x1-5"]}, "other": {"example.com/fpga": ["a"]}, "without": {}}
    async with katahost.pod_resources(host, held) as kubelet:
        for name, wanted in (
            ("unresolved", f"unresolvable CDI devices {KIND}=x1-5"),
            ("other", "unresolvable CDI devices example.com/fpga=a"),
            ("unknown", "NOT_FOUND"),
        ):
            before = kubelet.asked
            with pytest.raises(errors.FairleadError, match=wanted):
                async with pod(host, name):
                    pass
            assert kubelet.asked == before + 1
        # With the socket there, annotations count for nothing, even where they come through.
        async with pod(host, "without", handler=OPEN, annotations={"cdi.k8s.io/mine": f"{KIND}=1"}) as one:
            assert state(host, one.sandbox, "plugged.json")["names"] == []
            with pytest.raises(errors.FairleadError, match="/dev/vfio/9 was not plugged in when the machine was made"):
                await one.start("main", ["/bin/true"], host_devices={"/dev/vfio/9": "/dev/null"})


async def test_the_handler_is_the_articles_in_all_but_its_annotations(host: enginehost.Host) -> None:
    """What `runtime configure --kata` writes is read back from containerd; the stand-in's differs by its shim."""
    ours = host.dump()["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    main = host.read(enginehost.MAIN)
    try:
        host.write(enginehost.MAIN, enginehost.main_config(3))
        host.configure("--kata")
        written = host.dump()["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"][katahost.HANDLER]
        host.fairlead("runtime", "unconfigure", "--engine", "containerd")
    finally:
        host.write(enginehost.MAIN, main)
    config = "/opt/kata/share/defaults/kata-containers/configuration-qemu-nvidia-gpu.toml"
    assert written["runtime_type"] == f"io.containerd.{katahost.HANDLER}.v2"
    assert written["runtime_path"] == "/opt/kata/bin/containerd-shim-kata-v2"
    assert written["privileged_without_host_devices"] is True
    assert written["options"] == {"ConfigPath": config}
    assert not written.get("pod_annotations"), "the article's lets io.katacontainers.* through: a tenant's too"
    differing = {"runtime_type", "runtime_path", "options"}
    stand_in = ours[katahost.HANDLER]
    assert {key: value for key, value in stand_in.items() if key not in differing} == {
        key: value for key, value in written.items() if key not in differing
    }
    assert Path(stand_in["options"]["BinaryName"]).name == "runtime"
