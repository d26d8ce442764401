"""Other device plugins and CDI files of GPUs that are passed through: found by doctor, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.doctor.finding import Finding
from fairlead.cli.doctor.sharing import passthrough
from tests.unit.silicon.vfio import pcitree

GPU = "0000:0f:00.0"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as a socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        pcitree.add_gpu(pcitree.Tree(Path(name)), GPU, driver="vfio-pci")
        (Path(name) / "plugins").mkdir()
        (Path(name) / "cdi").mkdir()
        yield Path(name)


def findings(folder: Path, **more: str) -> list[Finding]:
    env = {
        "FAIRLEAD_SILICON_ROOT": str(folder),
        "FAIRLEAD_NODE_VFIO": "bound",
        "FAIRLEAD_NODE_KUBELET_FOLDER": str(folder / "plugins"),
        "FAIRLEAD_NODE_CDI_FOLDER": str(folder / "cdi"),
        **more,
    }
    config = settings.load(flags={}, env=env, file=None)
    found = passthrough.check(passthrough.collect(config))
    return [one for one in found if str(folder) in one.what]


@contextlib.contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()
        yield


def spec(path: Path, kind: str, *nodes: str) -> None:
    edits = {"deviceNodes": [{"path": node} for node in nodes]} if nodes else {"env": ["A=b"]}
    path.write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "0", "containerEdits": edits}]})
    )


@pytest.mark.parametrize(
    ("name", "said", "fix"),
    [
        ("sandbox-pgpu.sock", "sandbox device plugin (for Kata)", "sandboxDevicePlugin.enabled=false"),
        ("kubevirt-GH100_H100_SXM5_80GB.sock", "for KubeVirt", "sandboxDevicePlugin.enabled=false"),
        ("kubevirt-nvidia.com-GH100_H100_SXM5_80GB.sock", "for KubeVirt", "sandboxDevicePlugin.enabled=false"),
    ],
)
def test_a_plugin_of_the_same_gpus_is_named_with_what_takes_it_away(
    folder: Path, name: str, said: str, fix: str
) -> None:
    with listening(folder / "plugins" / name):
        (found,) = findings(folder)
    assert found.level == "fail"
    assert said in found.what
    assert name in found.what
    assert fix in found.fix
    assert findings(folder) == [], "a socket that a plugin has left behind is no plugin"


@pytest.mark.parametrize(
    "name", ["kubevirt-kvm.sock", "kubevirt-vhost-net.sock", "nvidia-gpu.sock", "kubelet.sock", "sandbox-a\nb.sock"]
)
def test_other_sockets_are_not_of_these_gpus(folder: Path, name: str) -> None:
    with listening(folder / "plugins" / name):
        assert findings(folder) == []


def test_a_plugin_of_the_same_resource_is_named(folder: Path) -> None:
    with listening(folder / "plugins" / "nvidia-gpu.sock"):
        (found,) = findings(folder, FAIRLEAD_NODE_VFIO_NAMES="index")
    assert "devicePlugin.enabled=false" in found.fix


def test_a_machine_that_leaves_its_gpus_to_the_other_plugin_is_not_judged(folder: Path) -> None:
    with listening(folder / "plugins" / "sandbox-pgpu.sock"):
        assert findings(folder, FAIRLEAD_NODE_VFIO="off") == []


@pytest.mark.parametrize(
    ("kind", "nodes", "names", "said"),
    [
        ("nvidia.com/pgpu", ("/dev/vfio/vfio", "/dev/vfio/15"), "slots", "names /dev/vfio/15"),
        ("nvidia.com/pgpu", (), "kata", "is of the same kind"),
        ("nvidia.com/gpu", ("/dev/nvidia0",), "index", "is of the same kind"),
    ],
)
def test_a_cdi_file_of_the_same_gpus_or_kind_is_named(
    folder: Path, kind: str, nodes: tuple[str, ...], names: str, said: str
) -> None:
    spec(folder / "cdi" / "other.json", kind, *nodes)
    (found,) = findings(folder, FAIRLEAD_NODE_VFIO_NAMES=names)
    assert found.level == "warn"
    assert said in found.what
    assert found.fix.endswith("other.json.before`")


def test_our_own_files_and_those_of_other_devices_are_no_finding(folder: Path) -> None:
    spec(folder / "cdi" / "fairlead-slots-nvidia.com-h100.json", "nvidia.com/h100-sxm5-80gb-x1", "/dev/vfio/15")
    spec(folder / "cdi" / "nics.json", "example.com/nic", "/dev/vfio/vfio", "/dev/vfio/99")
    (folder / "cdi" / "broken.json").write_text("{")
    (folder / "linked").symlink_to(folder / "cdi")
    assert findings(folder) == []
    assert findings(folder, FAIRLEAD_NODE_CDI_FOLDER=str(folder / "linked")) == []
