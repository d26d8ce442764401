"""Parts of the hook that hostile files and runtimes meet: signals, sizes, numbers, and what is not a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.inject import rootfs
from fairlead.inject.hook import compat
from fairlead.inject.hook import program as hook
from fairlead.plan.cdi import hookargs

_LIBRARY = "/opt/gpu/libx.so.9.9"


@pytest.fixture
def root(tmp_path: Path) -> rootfs.Root:
    (tmp_path / "opt/gpu").mkdir(parents=True)
    return rootfs.Root(str(tmp_path))


def test_the_hook_hears_its_alarm_though_the_runtime_blocked_every_signal() -> None:
    """crun runs hooks with all signals blocked, and a blocked or ignored alarm never comes."""
    code = (
        "import signal, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "from fairlead.inject.hook import program as hook\n"
        "hook._hear_signals()\n"
        "signal.alarm(1)\n"
        "time.sleep(20)\n"
    )
    done = subprocess.run((sys.executable, "-c", code), check=False, timeout=15)
    assert done.returncode == -signal.SIGALRM


def test_a_volume_of_the_tenants_that_is_a_pipe_is_not_waited_for(root: rootfs.Root, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / _LIBRARY[1:])
    assert hook._soname(root, _LIBRARY) is None


def test_a_library_that_leads_out_of_the_container_is_not_read(root: rootfs.Root, tmp_path: Path) -> None:
    (tmp_path / _LIBRARY[1:]).symlink_to("/../../../etc/passwd")
    assert hook._soname(root, _LIBRARY) is None


@pytest.mark.parametrize("driver", ["9" * 5000, "\u0663", "", "-1", "550" * 40])
def test_a_drivers_version_that_no_driver_has_is_0(driver: str) -> None:
    assert compat._major(driver) == 0


@pytest.mark.parametrize("note", ["[" * 100_000, '{"Driver":' * 50_000, '{"Driver": ["' + "9" * 5000 + '"]}'])
def test_a_compatibility_note_without_end_is_no_note(note: str) -> None:
    assert compat._majors(note) in (None, [0])


def test_a_path_file_larger_than_is_read_leaves_the_step_out(root: rootfs.Root, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with (tmp_path / "etc/ld-musl-x86_64.path").open("wb") as file:
        file.truncate(17 << 20)
    with hook._Step("library search"):
        root.read("/etc/ld-musl-x86_64.path")


_PROFILE = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"


def _prepared(folder: Path, nodes: object, *arguments: str) -> Path:
    """Run the hook's steps for a container whose runtime spec has some device nodes; returns the profile's place."""
    (folder / "opt/gpu").mkdir(parents=True, exist_ok=True)
    args = hookargs.arguments(["/opt/gpu/libEGL_nvidia.so.550.1"], without=frozenset(hookargs.STEPS[:4]))
    config: dict[str, object] = {"root": {"path": str(folder)}, "linux": {"devices": nodes}}
    hook.Hook(hook.parse([*args[1:], *arguments]), config, "/nowhere").run()
    return folder / _PROFILE


def _node(path: str, minor: object) -> dict[str, object]:
    return {"path": path, "type": "c", "major": 195, "minor": minor}


@pytest.mark.parametrize(
    ("nodes", "mask"),
    [
        ([_node("/dev/nvidia0", 0)], "0x1"),
        ([_node("/dev/nvidia3", 3), _node("/dev/nvidia1", 1), _node("/dev/nvidiactl", 255)], "0xa"),
        ([_node("/dev/nvidia40", 40)], "0x10000000000"),
        ([_node("/dev/nvidia0", 0), _node("/dev/nvidia64", 64), _node("/dev/nvidia2", "x"), 7], "0x1"),
    ],
)
def test_graphics_libraries_are_told_which_gpus_are_the_containers(tmp_path: Path, nodes: object, mask: str) -> None:
    said = _prepared(tmp_path, nodes).read_text()
    assert said == f'{{"rules": [{{"pattern": [], "profile": ["EGLVisibleDGPUDevices", {mask}]}}]}}\n'


@pytest.mark.parametrize("nodes", [[], None, [_node("/dev/nvidiactl", 255)], [_node("/dev/nvidia-uvm", 0)]])
def test_without_a_gpu_there_is_nothing_to_tell_them(tmp_path: Path, nodes: object) -> None:
    assert not _prepared(tmp_path, nodes).exists()


def test_a_profile_of_the_image_that_leads_out_is_replaced_itself(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("the host's")
    inside = tmp_path / "root"
    (inside / _PROFILE).parent.mkdir(parents=True)
    (inside / _PROFILE).symlink_to(outside)
    assert "0x1" in _prepared(inside, [_node("/dev/nvidia0", 0)]).read_text()
    assert outside.read_text() == "the host's"


def test_only_where_graphics_are_shown_is_there_a_profile() -> None:
    shown = hookargs.arguments(["/usr/lib/libGLX_nvidia.so.550.1"])
    assert shown[-2:] == ["--application-profile", f"/{_PROFILE}"]
    assert "--application-profile" not in hookargs.arguments(["/usr/lib/libcuda.so.550.1"])
    without = frozenset({"update-application-profile"})
    assert "--application-profile" not in hookargs.arguments(["/usr/lib/libGLX_nvidia.so.550.1"], without=without)
