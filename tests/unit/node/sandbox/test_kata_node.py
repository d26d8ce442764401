"""What is read of a node's kubelet, containerd and Kata, from files of the test's own."""

from __future__ import annotations

from pathlib import Path

from fairlead.node.sandbox import kata
from fairlead.plan.sandbox import kata as plan

CONTAINERD = """\
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata-qemu-nvidia-gpu]
runtime_type = "io.containerd.kata-qemu-nvidia-gpu.v2"
runtime_path = "SHIM"
pod_annotations = ["io.katacontainers.*"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata-qemu-nvidia-gpu.options]
ConfigPath = "/opt/kata/gpu.toml"
"""


def machine(root: Path, **texts: str) -> Path:
    shim = root / "shim"
    shim.write_text(
        "#!/bin/sh\necho 'Kata Containers containerd shim (Golang): id: \"x\", version: 4.0.2, commit: y'\n"
    )
    shim.chmod(0o755)
    files = {"etc/containerd/config.toml": CONTAINERD.replace("SHIM", str(shim)), **texts}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


async def test_a_node_without_a_handler_of_kata_says_nothing_else(tmp_path: Path) -> None:
    assert await kata.look(tmp_path) == plan.Node()
    assert await kata.look(machine(tmp_path, **{"etc/containerd/config.toml": "version = 3\n"})) == plan.Node()


async def test_handlers_files_and_releases_are_read(tmp_path: Path) -> None:
    texts = {
        "opt/kata/gpu.toml": '[hypervisor.qemu]\ncold_plug_vfio = "root-port"\n',
        "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\nruntimeRequestTimeout: 15m\n",
    }
    found = await kata.look(machine(tmp_path, **texts))
    (handler,) = found.handlers
    assert (handler.name, handler.pod_annotations) == ("kata-qemu-nvidia-gpu", ("io.katacontainers.*",))
    assert (found.version, found.has_socket) == ((4, 0, 2), False)
    assert found.configs["/opt/kata/gpu.toml"]["hypervisor"]["qemu"]["cold_plug_vfio"] == "root-port"
    assert found.kubelet is not None
    assert found.kubelet["runtimeRequestTimeout"] == "15m"
    said = "; ".join(one.what for one in plan.problems(found))
    for words in ("Kata 4.0.2 is older than 4.1.0", "is not there", "runtimeRequestTimeout is 15m"):
        assert words in said


async def test_a_file_that_cannot_be_read_is_a_fact_of_its_own(tmp_path: Path) -> None:
    found = await kata.look(machine(tmp_path))
    assert found.unread == {"/opt/kata/gpu.toml": "it is not there"}
    found = await kata.look(machine(tmp_path, **{"opt/kata/gpu.toml": "= \0", "var/lib/kubelet/config.yaml": "\t- :"}))
    assert list(found.unread) == ["/opt/kata/gpu.toml"]
    assert found.kubelet is None
