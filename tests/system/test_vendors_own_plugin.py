"""NVIDIA's own device plugin, built from its published Go module, at our kubelet: real answers, real containers.

It runs in a mount namespace, since its socket has a fixed place: there, that is the folder of this service.
Its NVML is the double of `nvmldouble.c`, which names the service's simulated GPUs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from home import Home
from test_vendor_plugin_standalone import allocatable, steps

from fairlead import errors
from tools.cluster import build

# Building the plugin takes a minute, once.
pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(900)]

_SOURCE: Final = Path(__file__).with_name("nvmldouble.c")
_PLACES: Final = """
set -e
mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins
mount --bind "$0" /var/lib/kubelet/device-plugins
exec "$@"
"""
_SPECS: Final = Path("/var/run/cdi")
_GPUS: Final = "ls /dev | grep -E '^nvidia[0-9]+$' | sort"


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return build.ensure(build.VENDOR_PLUGIN) / "nvidia-device-plugin"
    except errors.Unavailable as error:
        pytest.skip(f"the vendor's plugin cannot be built here: {error}")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver's root whose libraries are the double."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    root = tmp_path_factory.mktemp("driver")
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    version = folder / "libnvidia-ml.so.550.54.15"
    subprocess.run(("gcc", "-shared", "-fPIC", "-O1", "-o", str(version), str(_SOURCE)), check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(version.name)
    (folder / "libcuda.so.550.54.15").write_bytes(version.read_bytes())
    return root


def gpus(service: Home) -> list[dict[str, Any]]:
    return [one["gpu"] for one in service.ok("gpus", "-o", "json").data["gpus"]]


@contextlib.contextmanager
def plugged(service: Home, program: Path, driver: Path, **settings: str) -> Iterator[None]:
    """Run the plugin until the block ends, once the service's kubelet follows it."""
    folder = service.folder / "run/device-plugins"
    (node,) = service.state.rglob("dev/nvidia0")
    (driver / "dev").unlink(missing_ok=True)
    (driver / "dev").symlink_to(node.parent)
    service.until(lambda: allocatable(service) == "8", what="our own plugin has registered")
    listed = ",".join(f"{one['uuid']}={one['minor']}" for one in gpus(service))
    libraries = str(driver / "usr/lib/x86_64-linux-gnu")
    env = {"PATH": os.defpath, "LD_LIBRARY_PATH": libraries, "FAIRLEAD_TEST_GPUS": listed, **settings}
    line = ("unshare", "-m", "sh", "-c", _PLACES, str(folder), str(program))
    # /bin/true stands where the toolkit's hooks would: none is on this machine.
    roots = ("--driver-root", str(driver), "--driver-root-ctr-path", str(driver), "--nvidia-cdi-hook-path", "/bin/true")
    with (service.folder / "plugin.log").open("ab") as log:
        plugin = subprocess.Popen((*line, *roots), env=env, stdout=log, stderr=log)
    try:
        registered = "Registered device plugin for 'nvidia.com/gpu'"
        said = service.folder / "plugin.log"
        service.until(lambda: registered in said.read_text(), what="it registered", detail=said.read_text)
        yield
    finally:
        plugin.send_signal(signal.SIGTERM)
        plugin.wait(20)
        os.truncate(service.folder / "plugin.log", 0)
        for spec in _SPECS.glob("k8s.device-plugin.nvidia.com-*"):
            spec.unlink()


def assert_given(service: Home, name: str, shown: list[str], kind: str, count: int) -> None:
    """The container's nodes and the kernel's word on each are of the GPUs that the answer named, and of no other."""
    told = steps(service, name)
    assert told["DevicesAdvertised"]["socket"].endswith("/nvidia-gpu.sock")
    minors = {one["uuid"]: one["minor"] for one in gpus(service)}
    names = [said.partition("=") for said in told["EditsResolved"]["names"]]
    assert {said[0] for said in names} == {kind}
    given = {f"nvidia{minors[said[2]]}" for said in names}
    assert len(given) == count
    assert set(shown) == given
    opens = {path: said for path, said in told["IsolationRead"]["opens"].items() if path[-1].isdigit()}
    assert {path for path, said in opens.items() if said == "ENXIO"} == {f"/dev/{one}" for one in given}
    assert {said for path, said in opens.items() if path.removeprefix("/dev/") not in given} == {"EPERM"}, opens


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "envvar,volume-mounts"])
def test_each_answer_without_cdi_gives_those_gpus_and_no_other(
    service: Home, program: Path, driver: Path, strategy: str, count: int
) -> None:
    name = f"by-{strategy.replace(',', '-')}-{count}"
    with plugged(service, program, driver, DEVICE_LIST_STRATEGY=strategy):
        result = service.run("-g", str(count), "--name", name, "--", "sh", "-c", _GPUS)
        assert result.code == 0, result.err
        assert_given(service, name, result.out.split(), "fairlead.dev/gpu", count)


def test_ids_by_index_are_the_same_gpus(service: Home, program: Path, driver: Path) -> None:
    with plugged(service, program, driver, DEVICE_ID_STRATEGY="index"):
        result = service.run("-g", "3", "--name", "by-index", "--", "sh", "-c", _GPUS)
    assert result.code == 0, result.err
    (ids,) = service.show("by-index")["devices"].values()
    minors = {one["uuid"]: one["minor"] for one in gpus(service)}
    assert set(result.out.split()) == {f"nvidia{minors[uuid]}" for uuid in ids}


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri", "envvar,cdi-cri"])
def test_an_answer_by_cdi_gives_what_the_vendors_own_spec_says(
    service: Home, program: Path, driver: Path, strategy: str
) -> None:
    name = f"by-{strategy.replace(',', '-')}"
    with plugged(service, program, driver, DEVICE_LIST_STRATEGY=strategy):
        result = service.run("-g", "2", "--name", name, "--", "sh", "-c", _GPUS)
        assert result.code == 0, result.err
        assert_given(service, name, result.out.split(), "k8s.device-plugin.nvidia.com/gpu", 2)


def test_ours_serves_again_when_the_vendors_ends(service: Home, program: Path, driver: Path) -> None:
    with plugged(service, program, driver):
        pass
    service.until(lambda: allocatable(service) == "8", what="our plugin serves again")
    assert service.run("-g", "1", "--name", "after", "--", "true").code == 0
    assert "/fairlead-" in steps(service, "after")["DevicesAdvertised"]["socket"]
