"""The page `replace-nvidia-toolkit.md`, carried out as printed on a podman node that has the old toolkit's files.

Every block of commands runs in a mount namespace whose /etc, /usr/libexec and spec folder are copies, so that the paths
of production are used and this host keeps its own. What the host lacks is stood in for: systemctl does nothing, podman
gets the limits this machine's root needs and runc, GPUs are simulated. The old runtime is a script that says it was
there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oci_bundle
import pytest

pytestmark = [pytest.mark.podman, pytest.mark.timeout(180)]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "replace-nvidia-toolkit.md"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Limits: root without CAP_SYS_RESOURCE may not raise any.
LIMITS = "--ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --network none"
STAND_IN = '#!/bin/sh\necho "$*" >> {log}\nexec runc "$@"\n'
OLD_CONF = '[engine.runtimes]\nnvidia = ["{program}"]\n'
OLD_SPEC = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    env: [OLD=1]\n"
COVERED = ("/etc", "/usr/libexec", "/run/cdi", "/run/fairlead")
GPU = re.compile(r"^GPU \d: NVIDIA H100", re.MULTILINE)


def blocks() -> dict[str, list[str]]:
    """Return the page's commands by the number of their section."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE):
        found[part.partition(".")[0][:2]] = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    return found


class Node:
    """A podman node with the old toolkit."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder, self.image = folder, image
        self.log = folder / "nvidia-was-here"
        program = folder / "nvidia-container-runtime"
        program.write_text(STAND_IN.format(log=self.log))
        program.chmod(0o755)
        for place in COVERED:
            for part in ("upper", "work"):
                (folder / part / place.strip("/").replace("/", "-")).mkdir(parents=True)
        commands = folder / "bin"
        commands.mkdir()
        self._command("fairlead", f'exec {sys.executable} -m fairlead.cli.main "$@"')
        self._command("systemctl", "exit 0")
        self.write("/etc/containers/containers.conf.d/99-nvidia.conf", OLD_CONF.format(program=program))
        self.write("/etc/containers/containers.conf.d/00-node.conf", '[engine]\nruntime = "runc"\n')
        self.write("/etc/cdi/nvidia.yaml", OLD_SPEC)

    def _command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def sh(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a block of the page as root on this node, every line of it with success."""
        mounts = []
        for place in COVERED:
            name = place.strip("/").replace("/", "-")
            layers = f"lowerdir={place},upperdir={self.folder}/upper/{name},workdir={self.folder}/work/{name}"
            mounts.append(f"mount -t overlay overlay -o {layers} {place}")
        script = script.replace("podman run --rm ", f"podman run --rm {LIMITS} ")
        line = ("unshare", "-m", "--propagation", "private", "sh", "-c", " && ".join([*mounts, 'exec sh -ec "$1"']))
        environment = {
            "PATH": f"{self.folder}/bin:{PATH}",
            "HOME": "/root",
            "ENGINE": "podman",
            "IMAGE": self.image,
            "FAIRLEAD_STATE_FOLDER": str(self.folder / "state"),
            "FAIRLEAD_SILICON_SIMULATE": "h100x8",
        }
        done = subprocess.run(
            (*line, "sh", script), env=environment, capture_output=True, text=True, check=False, timeout=90
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done

    def write(self, path: str, text: str) -> None:
        self.sh(f"mkdir -p {Path(path).parent}; cat > {path} <<'END'\n{text}END\n")

    def tree(self) -> str:
        places = "/etc/containers /etc/cdi /etc/fairlead /var/run/cdi/"
        every = f"find {places} -type f 2>/dev/null | sort"
        return self.sh(f"for file in $({every}); do stat -c '%n %A %u %g' $file; cat $file; done").stdout

    def runs(self) -> int:
        """Count the containers that the old runtime made."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(" create " in f" {line} " for line in lines)


@pytest.fixture
def node(tmp_path: Path, image: str) -> Iterator[Node]:
    oci_bundle.require("runc", "busybox", "unshare", "podman")
    made = [path for path in map(Path, COVERED) if not path.exists()]
    for path in made:
        path.mkdir(parents=True)
    yield Node(tmp_path, image)
    for path in made:
        path.rmdir()


@pytest.mark.slow
def test_the_page_is_a_migration_there_and_back_and_there_for_good(node: Node) -> None:
    steps = blocks()
    assert {key: len(value) for key, value in steps.items() if value} == {
        "# ": 1,
        "1": 1,
        "2": 1,
        "3": 1,
        "4": 2,
        "5": 1,
    }
    (specs,), (tell,), (count,), (trial, back), (remove,) = (steps[key] for key in "12345")
    before = node.tree()
    old = node.sh("podman run --rm --runtime nvidia $IMAGE true")
    assert (old.returncode, node.runs()) == (0, 1)

    written = node.sh(specs)
    assert "devices, CDI 0.5.0" in written.stderr
    spec = json.loads(node.sh("cat /var/run/cdi/nvidia.com-gpu.json").stdout)
    assert spec["kind"] == "nvidia.com/gpu"
    assert "zz-fairlead.conf: written" in node.sh(tell).stdout
    node.sh(count)
    tried = node.sh(trial).stdout
    assert "podman is configured" in tried
    assert len(GPU.findall(tried)) == 2
    assert node.runs() == 1  # no container of ours came by the old runtime

    node.sh(back)
    node.sh("rm /etc/fairlead/runtime.json")
    assert node.tree() == before
    node.sh("podman run --rm --runtime nvidia $IMAGE true")
    assert node.runs() == 2

    for block in (specs, tell, count, remove, trial):
        shown = node.sh(block).stdout
    assert len(GPU.findall(shown)) == 2
    assert node.runs() == 2
    assert "99-nvidia" not in node.tree()


def test_until_the_operator_says_so_an_image_gets_nothing_by_asking(node: Node) -> None:
    steps = blocks()
    node.sh(steps["1"][0])
    node.sh(steps["2"][0])
    asked = node.sh("podman run --rm --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all $IMAGE ls /dev").stdout
    assert "nvidia" not in asked
    given = node.sh("podman run --rm --device nvidia.com/gpu=0 $IMAGE ls /dev").stdout
    assert "nvidia0" in given.split()
