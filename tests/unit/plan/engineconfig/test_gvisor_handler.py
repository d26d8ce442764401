"""The handler of gVisor in each engine's files, and the program that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import gvisor
from fairlead.plan.engineconfig.model import Request
from tests.unit.plan.engineconfig.test_engineconfig import Host, propose

RUNSC = "/usr/local/bin/runsc"
LIBEXEC = "/usr/libexec/fairlead"


def asked(**more: Any) -> Request:
    return Request(folder=LIBEXEC, gvisor=RUNSC, **more)


def written(engine: str, files: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what the last file that is written says."""
    proposal = propose(
        {"engine": engine, "request": {"gvisor": RUNSC}},
        Host({path: text.encode() for path, text in (files or {}).items()}),
    )
    text = proposal.edits[-1 if engine == "docker" else 0].after.decode()
    return json.loads(text) if engine == "docker" else tomllib.loads(text)


def test_podman_and_docker_and_crio_start_our_program() -> None:
    assert written("podman")["engine"]["runtimes"]["gvisor"] == [f"{LIBEXEC}/podman/fairlead-gvisor"]
    assert written("docker")["runtimes"]["gvisor"] == {"path": f"{LIBEXEC}/docker/fairlead-gvisor"}
    handler = written("crio")["crio"]["runtime"]["runtimes"]["gvisor"]
    assert handler == {"runtime_path": f"{LIBEXEC}/crio/fairlead-gvisor", "runtime_type": "oci"}


def test_containerd_starts_gvisors_shim_which_starts_our_program_and_hears_no_annotation() -> None:
    (section,) = written("containerd")["plugins"].values()
    handler = section["containerd"]["runtimes"]["gvisor"]
    assert handler["runtime_type"] == "io.containerd.runsc.v1"
    assert handler["runtime_path"] == "/usr/local/bin/containerd-shim-runsc-v1"
    assert not {"pod_annotations", "container_annotations"} & handler.keys()
    made = gvisor.made("containerd", asked())
    options = tomllib.loads(made[handler["options"]["ConfigPath"]][0].decode())
    assert options == {"binary_name": f"{LIBEXEC}/containerd/fairlead-gvisor"}
    assert made[options["binary_name"]][1] == 0o755


def test_without_the_option_there_is_no_handler() -> None:
    proposal = propose({"engine": "podman", "request": {}}, Host({}))
    assert b"gvisor" not in proposal.edits[0].after
    assert gvisor.made("containerd", Request(folder=LIBEXEC)) == {}


def test_a_handler_of_that_name_which_others_made_stays_and_is_named() -> None:
    files = {"/etc/containers/containers.conf": b'[engine.runtimes]\ngvisor = ["/opt/theirs"]\n'}
    proposal = propose({"engine": "podman", "request": {"gvisor": RUNSC}}, Host(files))
    assert b"gvisor" not in proposal.edits[0].after
    assert any("stays as it is" in note for note in proposal.notes)


@pytest.mark.parametrize(
    "more",
    [
        {"gvisor_flags": ("a b",)},
        {"gvisor_flags": ("-x",)},
        {"gvisor_flags": ("network=\0",)},
        {"gvisor_flags": ("x" * 100_000,)},
        {"gvisor_flags": ("network=a\nb",)},
        {"gvisor_dev": "/dev:/etc"},
        {"gvisor_dev": "/a,upperdir=/etc"},
        {"gvisor_dev": "relative"},
        {"gvisor_dev": '/a"$(id)'},
    ],
)
def test_what_would_be_something_else_in_a_script_or_a_mount_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(errors.Invalid):
        gvisor.check(asked(**more))


@pytest.mark.parametrize(
    ("engine", "given", "has_driver", "made"),
    [
        ("containerd", (), True, ("nvproxy",)),
        ("crio", ("--nvproxy-driver-version=550.90.12",), False, ("nvproxy-driver-version=550.90.12", "nvproxy")),
        ("containerd", ("nvproxy=false",), True, ("nvproxy=false",)),
        ("containerd", ("debug",), False, ("debug",)),  # no sandbox would start
        ("podman", (), True, ()),  # gVisor finds the GPU in the spec of the one container
    ],
)
def test_pods_can_have_gpus_where_there_is_a_driver(
    engine: str, given: tuple[str, ...], has_driver: bool, made: tuple[str, ...]
) -> None:
    assert gvisor.flags(engine, given, has_driver=has_driver) == made


def test_options_without_gvisor_are_refused() -> None:
    with pytest.raises(errors.Invalid, match="are for --gvisor"):
        gvisor.check(Request(folder=LIBEXEC, gvisor_flags=("debug",)))


def test_the_program_gives_runsc_its_options_and_the_engines_words_as_they_are(tmp_path: Path) -> None:
    echo = tmp_path / "run'sc"
    echo.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    echo.chmod(0o755)
    request = Request(folder=LIBEXEC, gvisor=str(echo), gvisor_flags=("platform=systrap", "x=$(id)`id`;'"))
    gvisor.check(request)
    program = tmp_path / "program"
    program.write_bytes(gvisor.launcher(request))
    program.chmod(0o755)
    done = subprocess.run((program, "create", "a b", "$(id)"), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<--platform=systrap>", "<--x=$(id)`id`;'>", "<create>", "<a b>", "<$(id)>"]


def test_a_folder_of_nodes_is_laid_over_dev_before_runsc_starts() -> None:
    text = gvisor.launcher(asked(gvisor_dev="/run/nvidia/driver/dev")).decode()
    assert text.splitlines()[-1].startswith("exec unshare --mount --propagation slave ")
    assert text.splitlines()[-1].endswith(f'/run/nvidia/driver/dev {RUNSC} "$@"')
    assert os.access("/bin/sh", os.X_OK)


@pytest.mark.parametrize(
    ("key", "runs"),
    [
        ("org.opencontainers.image.title", True),
        ("fairlead.dev/home", True),
        ("io.kubernetes.cri-o.Created", True),  # podman writes these itself
        ("io.kubernetes.cri-o.TTY", True),
        ("io.container.manager", True),
        ("dev.gvisor.tar.rootfs.upper", False),
        ("dev.gvisor.spec.rootfs.source", False),
        ("dev.gvisor.flag.network", False),
        ("io.kubernetes.cri.sandbox-id", False),
        ("io.kubernetes.cri-o.SandboxID", False),
        ("io.kubernetes.cri-o.ContainerType", False),
    ],
)
@pytest.mark.parametrize("option", ["--bundle", "--bundle=", "-b"])
def test_under_podman_an_image_gives_gvisor_no_orders(tmp_path: Path, key: str, runs: bool, option: str) -> None:
    echo = tmp_path / "runsc"
    echo.write_text("#!/bin/sh\necho ran\n")
    echo.chmod(0o755)
    program = tmp_path / "program"
    program.write_bytes(gvisor.launcher(Request(folder=LIBEXEC, gvisor=str(echo)), "podman"))
    program.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"annotations": {key: "/etc/shadow"}}))
    words = [f"{option}{tmp_path}"] if option.endswith("=") else [option, str(tmp_path)]
    done = subprocess.run((program, "create", *words, "abc"), capture_output=True, text=True, check=False)
    assert (done.returncode == 0, done.stdout) == (runs, "ran\n" if runs else "")
    assert runs or "annotations for gVisor" in done.stderr
    assert subprocess.run((program, "kill", "abc", "9"), capture_output=True, check=True).stdout == b"ran\n"


def test_a_bundle_that_cannot_be_read_is_not_run(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(gvisor.launcher(Request(folder=LIBEXEC, gvisor="/bin/true"), "podman"))
    program.chmod(0o755)
    done = subprocess.run((program, "create", "--bundle", str(tmp_path)), capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot be read" in done.stderr) == (1, True)
