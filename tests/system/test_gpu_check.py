"""`tools/gpu/check` as a person calls it, on simulated silicon beside a stand-in of nvidia-smi."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import gpudouble

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("runc", "crun", "busybox", "podman"))),
        reason="needs root, runc, crun, podman and busybox",
    ),
]


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    smi = gpudouble.install(folder, str(folder / "silicon"), "h100x8")
    argv = (str(ROOT / "tools/gpu/check"), "--simulate", "h100x8", "--smi", str(smi), "--output", "report", *options)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=560, check=False)


def test_the_layers_pass_on_simulated_silicon_and_leave_nothing(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("fairlead-gpu-*"))
    parts = ("inventory", "specs", "containers", "holders", "sharing")
    done = check(tmp_path, *(word for name in parts for word in ("--only", name)))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert [part["name"] for part in report["parts"]] == list(parts)
    states = {check["name"]: check["state"] for part in report["parts"] for check in part["checks"]}
    assert states["gpu 7: uuid"] == "ok"
    for way in ("our shim and hook", "CDI edits alone"):
        for runtime in ("runc", "crun"):
            assert states[f"{runtime}, {way}: nvidia-smi -L shows one GPU, the granted one"] == "ok"
            assert states[f"{runtime}, {way}: /dev/nvidia0 opens"] == "ok"
            assert states[f"{runtime}, {way}: device 195:1 is denied"] == "ok"
    assert states["CUDA program"] == "skipped"  # there is no nvcc here, and the page says so
    assert "Every required part passed." in (tmp_path / "report/report.md").read_text()
    assert set(Path("/tmp").glob("fairlead-gpu-*")) == before


def test_a_driver_that_says_otherwise_fails_the_check_and_is_named(tmp_path: Path) -> None:
    smi = gpudouble.install(tmp_path, str(tmp_path / "silicon"), "h100x8")
    smi.write_text(smi.read_text().rstrip() + " | sed 's/81559 MiB/80000 MiB/'\n")
    argv = (ROOT / "tools/gpu/check", "--simulate", "h100x8", "--smi", smi, "--only", "inventory", "--output", "out")
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "DIFFERS: gpu 0: memory in MiB; ours 81559, theirs 80000" in done.stdout


def test_a_machine_without_a_gpu_is_said_so(tmp_path: Path) -> None:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    argv = (ROOT / "tools/gpu/check", "--output", "out")
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode != 6:
        pytest.skip("this machine has a GPU")
    assert "no GPU was found on this machine: `--simulate h100x8` tries the check itself" in done.stderr
    assert subprocess.run((*argv, "--only", "x"), cwd=tmp_path, env=env, check=False).returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(
    len(Path("/proc/net/route").read_text().splitlines()) < 2, reason="wheels for another Python come by the network"
)
def test_the_pack_carries_the_whole_check_to_a_machine_without_network_or_programs(tmp_path: Path) -> None:
    """Without .venv, without podman, runtimes and their libraries, with another Python if one is here."""
    python = next(iter(sorted(Path("/root/.pyenv/versions").glob("3.12.*/bin"))), None)
    version = ("--python", "3.12") if python else ("--python", f"3.{sys.version_info.minor}")
    subprocess.run((ROOT / "tools/gpu/pack", *version), check=True, timeout=560, capture_output=True)
    assert (ROOT / "build/gpu/pack.tar.xz").stat().st_size < 60 << 20
    smi = gpudouble.install(tmp_path, str(tmp_path / "silicon"), "h100x8")
    path = ":".join((*([str(python)] if python else []), "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))
    hidden = tmp_path / "hidden"
    line = (
        "set -e; ip link set lo up; cd /usr; for f in bin/podman bin/crun sbin/runc bin/runc bin/conmon bin/busybox "
        "lib/*/libyajl.so* lib/*/libgpgme.so* lib/*/libsubid.so*; do [ ! -e $f ] || "
        f'{{ mkdir -p "{hidden}/$(dirname $f)"; mknod "{hidden}/$f" c 0 0; }}; done; '
        f"mount -t overlay -o lowerdir={hidden}:/usr overlay /usr; ! command -v podman; cd {tmp_path}; "
        f"exec {ROOT}/tools/gpu/check --simulate h100x8 --smi {smi} --output report"
    )
    done = subprocess.run(
        ("unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", line),
        env={"PATH": path, "HOME": "/root", "GPU_CHECK_PACK": str(ROOT / "build/gpu/pack.tar.xz")},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["machine"]["tools"].startswith("of the pack: ")
    assert report["passed"] is True
    assert all(part["passed"] for part in report["parts"])


def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    pages = ROOT / "tests/system/pages.py"
    argv = (sys.executable, str(pages), str(ROOT / "docs/how-to/check-a-gpu.md"))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "gpu-report/report.md").exists()
