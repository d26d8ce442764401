"""The shim as engines start it: a process of its own, before a runtime that writes down how it was called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.inject import launcher
from fairlead.wire.cdi import stamp
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi
from tests import kubeletcheckpoint

KIND = "test.fairlead.dev/gpu"
RECORDER = '#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {record}\nexit 7\n'
HEAVY = {
    "re",
    "json",
    "typing",
    "dataclasses",
    "pathlib",
    "enum",
    "inspect",
    "ctypes",
    "collections",
    "subprocess",
    "os",
}


@dataclass
class Shim:
    """A launcher, its policy, specs, a recording runtime and one bundle."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "bin" / launcher.RUNTIME

    @property
    def config(self) -> Path:
        return self.folder / "bundle" / "config.json"

    def policy(self, **keys: object) -> None:
        base = {
            "runtimes": [str(self.folder / "recorder")],
            "specDirs": [str(self.folder / "cdi")],
            "defaultKind": KIND,
            "cache": str(self.folder / "run" / "cache.json"),
            "hook": "",
            "imageRequests": "honour",
        }
        path = self.folder / "runtime.json"
        path.write_text(json.dumps({**base, **keys}))
        path.chmod(0o644)

    def bundle(self, *env: str, **more: Any) -> dict[str, Any]:
        document = {
            "ociVersion": "1.0.2",
            "futureField": {"kept": [1, 2.5]},
            "process": {"env": ["PATH=/bin", *env], "args": ["true"]},
            "linux": {"seccomp": {"x": 1}},
            **more,
        }
        self.config.write_text(json.dumps(document))
        self.config.chmod(0o640)
        return document

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        (self.folder / "record").unlink(missing_ok=True)
        return subprocess.run(
            (self.program, *arguments), capture_output=True, text=True, check=False, timeout=20, **options
        )

    def create(self) -> subprocess.CompletedProcess[str]:
        return self(
            "--log", str(self.folder / "log"), "--log-format", "json", "create", "-b", str(self.config.parent), "x"
        )

    def recorded(self) -> list[str]:
        path = self.folder / "record"
        return path.read_text().splitlines()[1:] if path.exists() else []

    def edited(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.config.read_bytes())
        return found

    def logged(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "log").read_text().splitlines()[-1])
        return found


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    made = Shim(tmp_path)
    for name in ("bin", "cdi", "bundle"):
        (tmp_path / name).mkdir(mode=0o755)
    config = tmp_path / "runtime.json"
    text = launcher.emit_runtime(
        interpreter=os.path.realpath(sys.executable), packages=_packages(), hook="", config=str(config)
    )
    made.program.write_bytes(text)
    made.program.chmod(0o755)
    recorder = tmp_path / "recorder"
    recorder.write_text(RECORDER.format(record=tmp_path / "record"))
    recorder.chmod(0o755)
    devices = tuple(
        cdi.Device(
            name=str(i),
            edits=cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path=f"/dev/nvidia{i}", host_path="/dev/null"),)),
        )
        for i in range(2)
    )
    mounts = tuple(
        cdi.Mount(host_path=f"/usr/lib/{name}", container_path=f"/usr/lib/{name}", options=("ro", "rbind"))
        for name in ("libcuda.so.550.163.01", "libnvidia-encode.so.550.163.01")
    )
    common = cdi.ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",), mounts=mounts)
    (tmp_path / "cdi" / "a.json").write_bytes(
        emit.emit_json(cdi.Spec(cdi_version="", kind=KIND, devices=devices, edits=common))
    )
    made.policy()
    return made


def _packages() -> str:
    return str(Path(errors.__file__).parent.parent)


@pytest.mark.parametrize(
    "line",
    [
        "state x",
        "--root /r delete --force x",
        "kill x KILL",
        "--version",
        "exec --process p create",
        "delete create",
        "",
    ],
)
def test_other_commands_pass_untouched_with_the_runtimes_own_exit_code(shim: Shim, line: str) -> None:
    before = shim.bundle("NVIDIA_VISIBLE_DEVICES=0")
    done = shim(*line.split(), cwd=shim.config.parent)
    assert (done.returncode, shim.recorded()) == (7, line.split())
    assert shim.edited() == before


def test_create_edits_the_bundle_and_keeps_what_it_does_not_know(shim: Shim) -> None:
    before = shim.bundle("NVIDIA_VISIBLE_DEVICES=0,0")
    done = shim.create()
    assert (done.returncode, done.stderr) == (7, "")
    assert shim.recorded()[-3:] == ["-b", str(shim.config.parent), "x"]
    after = shim.edited()
    assert after["process"]["env"] == ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void"]
    assert [item["path"] for item in after["linux"]["devices"]] == ["/dev/nvidia0"]
    assert after["futureField"] == before["futureField"]
    assert after["linux"]["seccomp"] == before["linux"]["seccomp"]
    assert shim.config.stat().st_mode & 0o7777 == 0o640
    assert sorted(path.name for path in shim.config.parent.iterdir()) == ["config.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_the_files_owner_is_kept(shim: Shim) -> None:
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0")
    os.chown(shim.config, 12, 34)
    shim.create()
    assert (shim.config.stat().st_uid, shim.config.stat().st_gid) == (12, 34)


def test_a_bundle_called_create_and_the_current_folder_are_bundles_too(shim: Shim) -> None:
    shim.bundle("NVIDIA_VISIBLE_DEVICES=1")
    place = shim.folder / "create"
    shim.config.parent.rename(place)
    assert shim("create", "--bundle", "create", "x", cwd=shim.folder).returncode == 7
    assert b"/dev/nvidia1" in (place / "config.json").read_bytes()
    assert shim.recorded() == ["create", "--bundle", "create", "x"]


def test_the_short_way_writes_what_the_long_way_wrote(shim: Shim) -> None:
    old = 1_600_000_000
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_DRIVER_CAPABILITIES=compute")
    os.utime(shim.folder / "cdi" / "a.json", (old, old))
    original = shim.config.read_bytes()
    first = shim.create()
    long = shim.config.read_bytes()
    # The first start may have come too soon after the spec was written to keep anything.
    while not (shim.folder / "run" / "cache.json").exists():
        shim.config.write_bytes(original)
        assert shim.create().returncode == 7
    shim.config.write_bytes(original)
    done = subprocess.run(
        (
            os.path.realpath(sys.executable),
            "-IS",
            "-X",
            "importtime",
            shim.program,
            "create",
            "-b",
            shim.config.parent,
            "x",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert (first.returncode, done.returncode) == (7, 7)
    assert shim.config.read_bytes() == long
    assert "fairlead.inject.cachereader" in loaded
    assert not loaded & HEAVY
    assert "fairlead.inject.create" not in loaded


def test_passing_through_imports_nothing_heavy(shim: Shim) -> None:
    done = subprocess.run(
        (os.path.realpath(sys.executable), "-IS", "-X", "importtime", shim.program, "state", "x"),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 7
    assert not loaded & HEAVY


def test_annotations_of_a_kubelets_engine_count_without_any_permission(shim: Shim) -> None:
    shim.policy(imageRequests="ignore")
    marks = {"cdi.k8s.io/x": f"{KIND}=1", **kubeletcheckpoint.identity("uid-1")}
    shim.bundle("NVIDIA_VISIBLE_DEVICES=all", annotations=marks)
    shim.create()
    assert [item["path"] for item in shim.edited()["linux"]["devices"]] == ["/dev/nvidia1"]


def test_a_container_of_crio_is_given_its_allocation_and_an_image_that_writes_its_marks_is_not(shim: Shim) -> None:
    checkpoint = shim.folder / "checkpoint"
    checkpoint.write_text(json.dumps(kubeletcheckpoint.document(kubeletcheckpoint.by_environment("uid-1", "1"))))
    shim.policy(imageRequests="ignore", allocations=str(checkpoint))
    marks = {"io.kubernetes.pod.uid": "uid-1", "io.kubernetes.container.name": "main", "io.container.manager": "cri-o"}
    for written, given in (("x", ["/dev/nvidia1"]), ("x", ["/dev/nvidia1"]), ("another", [])):
        # Twice: the long way, then the short one.
        notes = {**marks, "io.kubernetes.cri-o.ContainerID": written}
        shim.bundle("NVIDIA_VISIBLE_DEVICES=1", annotations=notes)
        assert shim.create().returncode == 7
        assert [item["path"] for item in shim.edited()["linux"].get("devices", [])] == given


def test_an_escaped_key_of_the_request_is_seen_too(shim: Shim) -> None:
    shim.bundle(annotations={"cdi.k8s.io/x": f"{KIND}=1"})
    shim.config.write_bytes(shim.config.read_bytes().replace(b"cdi.k8s.io", b"cdi\\u002ek8s.io"))
    shim.create()
    assert shim.edited()["linux"]["devices"]


def test_an_images_request_is_ignored_aloud_and_the_bundle_stays_as_it_was(shim: Shim) -> None:
    shim.policy(imageRequests="ignore")
    shim.bundle("NVIDIA_VISIBLE_DEVICES=all")
    before = shim.config.read_bytes()
    assert shim.create().returncode == 7
    assert shim.config.read_bytes() == before
    assert shim.logged()["level"] == "warning"
    assert "ignored" in shim.logged()["msg"]


@pytest.mark.parametrize(
    ("env", "keys", "code", "words"),
    [
        (("NVIDIA_VISIBLE_DEVICES=9",), {}, 2, "no CDI spec defines test.fairlead.dev/gpu=9"),
        (("NVIDIA_VISIBLE_DEVICES=a b",), {}, 2, "is not allowed"),
        (("NVIDIA_VISIBLE_DEVICES=0",), {"imageRequests": "refuse"}, 3, "requests by environment are refused"),
        (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=x"), {}, 2, "x is not offered here"),
        (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"), {}, 6, "a driver from 575.51.03 on"),
        (("NVIDIA_VISIBLE_DEVICES=none",), {"defaultKind": "other.dev/gpu"}, 2, "no CDI spec is of kind other.dev/gpu"),
    ],
)
def test_a_refusal_never_reaches_the_runtime_and_is_told_where_engines_look(
    shim: Shim, env: tuple[str, ...], keys: dict[str, Any], code: int, words: str
) -> None:
    shim.policy(**keys)
    shim.bundle(*env)
    before = shim.config.read_bytes()
    done = shim.create()
    assert (done.returncode, shim.recorded()) == (code, [])
    assert words in done.stderr
    assert shim.logged()["level"] == "error"
    assert words in shim.logged()["msg"]
    assert shim.config.read_bytes() == before


def stamped(shim: Shim, **more: Any) -> Path:
    """Say of which GPUs the spec's devices are."""
    spec = shim.folder / "cdi" / "a.json"
    gpus = {"/dev/nvidia0": ("7.5", "tesla"), "/dev/nvidia1": ("9.0", "nvidia")}
    mark = stamp.Stamp(**{"driver": "nvidia", "version": "550.163.01", "cuda": "12.6", "gpus": gpus, **more})
    path = stamp.beside(spec)
    path.write_bytes(stamp.emit_stamp(mark, spec.read_bytes()))
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("text", "devices", "code"),
    [
        ("arch>=9.0", "0", 6),
        ("arch>=9.0", "1", 7),
        ("arch>=9.0", "1,0", 6),
        ("brand=tesla", "0", 7),
        ("brand=tesla", "1", 6),
        ("brand=tesla arch>=9.0", "0,1", 7),
        ("cuda>=12.6", "0", 7),
    ],
)
def test_requirements_are_held_to_the_very_gpus_that_the_spec_brings(
    shim: Shim, text: str, devices: str, code: int
) -> None:
    stamped(shim)
    shim.bundle(f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_REQUIRE_CUDA={text}")
    assert shim.create().returncode == code


def test_a_refusal_names_the_gpu_that_is_too_old_and_both_sides(shim: Shim) -> None:
    stamped(shim)
    shim.bundle("NVIDIA_VISIBLE_DEVICES=1,0", "NVIDIA_REQUIRE_CUDA=arch>=9.0")
    told = shim.create().stderr
    assert "this host has cuda 12.6, driver 550.163.01; /dev/nvidia0 has arch 7.5, brand tesla" in told
    assert "on the host: a GPU with arch>=9.0; in the image: an image for arch 7.5" in told


@pytest.mark.parametrize("wrong", ["other bytes", "open to others", "another driver", "another vendor", "torn"])
def test_a_stamp_that_cannot_be_meant_decides_nothing(shim: Shim, wrong: str) -> None:
    path = stamped(shim, **{"another driver": {"version": "1.0"}, "another vendor": {"driver": "amd"}}.get(wrong, {}))
    if wrong == "other bytes":
        spec = shim.folder / "cdi" / "a.json"
        spec.write_bytes(spec.read_bytes() + b"\n")
    elif wrong == "open to others":
        path.chmod(0o666)
    elif wrong == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=brand=geforce")
    assert shim.create().returncode == 7


@pytest.mark.parametrize("mode", ["auto", "cdi", "env"])
@pytest.mark.parametrize("part", ["compute", "video", "all"])
def test_requirements_count_in_every_mode_whatever_part_of_the_driver_is_asked_for(
    shim: Shim, mode: str, part: str
) -> None:
    """A container that is shown no libcuda is held to the driver all the same."""
    shim.policy(mode=mode)
    ask: dict[str, Any] = {"annotations": {"cdi.k8s.io/x": f"{KIND}=0"}}
    env = ["NVIDIA_VISIBLE_DEVICES=0"] if mode == "env" else []
    parts = f"NVIDIA_DRIVER_CAPABILITIES={part}"
    shim.bundle(*env, parts, "NVIDIA_REQUIRE_CUDA=cuda>=12.4", **ask)
    assert shim.create().returncode == 7
    shim.bundle(*env, parts, "NVIDIA_REQUIRE_CUDA=cuda>=12.9", **ask)
    done = shim.create()
    assert done.returncode == 6
    assert "on the host: a driver from 575.51.03 on; in the image: an image for CUDA 12.4 or older" in done.stderr
    assert shim.recorded() == []


def test_capabilities_narrow_what_a_spec_shows(shim: Shim) -> None:
    shim.bundle("NVIDIA_DRIVER_CAPABILITIES=video", annotations={"cdi.k8s.io/x": f"{KIND}=0"})
    shim.create()
    assert [item["destination"] for item in shim.edited()["mounts"]] == ["/usr/lib/libnvidia-encode.so.550.163.01"]


def test_none_gives_the_driver_and_void_gives_nothing(shim: Shim) -> None:
    shim.bundle("NVIDIA_VISIBLE_DEVICES=none")
    shim.create()
    assert "devices" not in shim.edited()["linux"]
    assert len(shim.edited()["mounts"]) == 1  # compute and utility; video was not asked for
    shim.bundle("NVIDIA_VISIBLE_DEVICES=void")
    before = shim.config.read_bytes()
    shim.create()
    assert shim.config.read_bytes() == before


def test_the_hook_is_added_once_with_an_environment_of_its_own_and_a_time_limit(shim: Shim) -> None:
    shim.policy(hook="/opt/fairlead-hook", hookTimeout=9, ldconfig="/sbin/ldconfig")
    own = {"path": "/bin/other"}
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0", hooks={"createContainer": [own], "poststop": [own]})
    for _ in range(2):
        shim.create()
        shim.config.write_text(json.dumps({**shim.edited(), "annotations": {"cdi.k8s.io/x": f"{KIND}=0"}}))
    assert shim.edited()["hooks"] == {
        "createContainer": [
            own,
            {
                "path": "/opt/fairlead-hook",
                "args": [
                    "fairlead-hook",
                    "--folder",
                    "/usr/lib",
                    "--driver",
                    "550.163.01",
                    "--ldconfig",
                    "/sbin/ldconfig",
                ],
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "timeout": 9,
            },
        ],
        "poststop": [own],
    }


@pytest.mark.parametrize("line", ["state x", "create -b {bundle} x"])
def test_a_module_planted_where_the_engine_starts_it_is_never_imported(shim: Shim, line: str) -> None:
    """Engines start runtimes in the bundle, or where an image decides; plain Python looks for modules there first."""
    planted, owned = shim.folder / "planted", shim.folder / "owned"
    planted.mkdir()
    for name in ("json", "posix", "marshal", "sys", "fairlead", "_json", "sitecustomize"):
        (planted / f"{name}.py").write_text(f"open({str(owned)!r}, 'w').close()\n")
    bare: dict[str, str] = {}  # what measures coverage imports json by itself, and earlier
    subprocess.run((sys.executable, "-c", "import json"), cwd=planted, env=bare, check=True)
    assert owned.exists(), "the naive way must break, or this shows nothing"
    owned.unlink()
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0")
    done = shim(*line.format(bundle=shim.config.parent).split(), cwd=planted)
    assert (done.returncode, shim.recorded()[-1]) == (7, "x")
    assert not owned.exists()


def test_a_broken_policy_stops_new_containers_and_nothing_else(shim: Shim) -> None:
    shim.policy(imageRequest="honour")
    shim.bundle("NVIDIA_VISIBLE_DEVICES=0")
    done = shim.create()
    assert done.returncode == 2
    assert 'key "imageRequest" is unknown' in done.stderr
    other = shim("state", "x", env={"PATH": str(_only(shim, "runc"))})
    assert (other.returncode, shim.recorded()) == (7, ["state", "x"])


def _only(shim: Shim, name: str) -> Path:
    folder = shim.folder / "path"
    folder.mkdir()
    (folder / name).symlink_to(shim.folder / "recorder")
    return folder


def test_the_first_runtime_that_is_there_is_used_and_relative_folders_of_path_never(shim: Shim) -> None:
    shim.policy(runtimes=["/nowhere/runc", "my-crun"])
    folder = _only(shim, "my-crun")
    assert shim("state", env={"PATH": f"/nowhere:{folder}"}).returncode == 7
    missing = shim("state", env={"PATH": "path"}, cwd=shim.folder)
    assert missing.returncode == 127
    assert "no runtime found (looked for /nowhere/runc, my-crun)" in missing.stderr


def test_a_missing_or_damaged_bundle_is_refused_in_words(shim: Shim) -> None:
    assert "cannot read" in shim("create", "-b", "/nowhere", "x").stderr
    shim.config.write_text('{"process": NVIDIA_')
    assert "config.json" in shim.create().stderr
    assert shim.recorded() == []
    shim.config.write_text('["NVIDIA_VISIBLE_DEVICES"]')
    assert "not a JSON object" in shim.create().stderr


def test_standard_streams_and_environment_are_the_runtimes(shim: Shim) -> None:
    (shim.folder / "recorder").write_text('#!/bin/sh\ncat\necho "$MARK" >&2\n')
    done = shim("state", "x", input="in", env={"MARK": "m", "PATH": "/bin"})
    assert (done.stdout, done.stderr) == ("in", "m\n")
