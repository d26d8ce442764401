"""The way over from NVIDIA's device plugin, as its page prints it: its ConfigMap, its values, its labels, by helm."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cluster import node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(280),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/how-to/replace-nvidia-device-plugin.md").read_text()
_FILE = re.compile(r"`([\w.-]+\.yaml)`:\n\n```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the commands of the page's part about clusters, as printed, that it marks as run by this file."""
    part = _PAGE[_PAGE.index("## 3. On a cluster") : _PAGE.index("## 4.")]
    blocks = [text for mark, text in _BLOCK.findall(part) if Path(__file__).name in mark]
    return [line.removeprefix("$ ") for text in blocks for line in text.splitlines() if line.startswith("$ ")]


def test_the_page_moves_a_cluster_as_it_is_printed(
    cluster: home.Cluster, server: api.API, space: pods.Space, fairlead_image: str, tmp_path: Path
) -> None:
    for name, text in _FILE.findall(_PAGE):
        (tmp_path / name).write_text(text)
    (tmp_path / "src").symlink_to(_ROOT / "src")
    repository, _, tag = fairlead_image.rpartition(":")
    image = f"image.repository={repository},image.tag={tag},image.pullPolicy=Never,silicon.simulate=h100x8"
    space.start("runs", "exec sleep 3600")
    run = commands()
    assert len(run) == 9
    try:
        for printed in run:
            words = shlex.split(printed.replace(" gpu-1 ", f" {cluster.node} "))
            kind, rest = words[0], words[1:]
            more = ["--set", image] if words[:2] == ["helm", "install"] else []
            command = [cluster.program(kind), f"--kubeconfig={cluster.kubeconfig}", *rest, *more]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150)
            assert done.returncode == 0, f"{printed}: {done.stdout}{done.stderr}"
            if "jsonpath='{.status.allocatable.nvidia\\.com/gpu}'=80" in printed:
                space.start_looking("share", gpus=1)
                pods.assert_sees_its_own(space.sight("share"), 1)
                space.delete("share")
        assert space.get("runs")["status"]["phase"] == "Running"
    finally:
        space.clear()
        helm = [cluster.program("helm"), f"--kubeconfig={cluster.kubeconfig}", "uninstall", "fairlead", "-n", "nvidia"]
        subprocess.run([*helm, "--wait", "--timeout", "100s"], capture_output=True, check=False, timeout=150)
        node.until_allocatable(server, cluster.node, 0)
        server.delete("/api/v1/namespaces/nvidia")
