"""podman's handler of gVisor, with a stand-in of runsc: a container that joins a sandbox is held until its start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.container import sandboxfile
from fairlead.plan.engineconfig import gvisor, gvisorpod
from fairlead.plan.engineconfig.model import Request

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
RUNSC = """\
#!/bin/sh
here={here}
for word; do case $word in --log=*) log=${{word#--log=}} ;; esac; done
while [ "${{1#--}}" != "$1" ]; do echo "$1" >>$here/flags; shift; done
echo "$*" >>$here/calls
case $1 in
create) [ ! -e $here/refuses ] || {{ echo no sandbox >&2; exit 1; }} ;;
start)
  [ ! -e $here/fails ] || {{ echo it failed >$log; exit 1; }}
  {python} $here/hooks.py || exit 1
  echo running; echo broken >&2
  touch $here/ran ;;
wait) echo '{{"id":"abc","exitStatus":7}}' ;;
esac
"""
HOOKS = """\
import json, subprocess
for hook in json.load(open("{here}/bundle/config.json"))["hooks"]["createContainer"]:
    subprocess.run(hook["args"], executable=hook["path"], input=b"{{}}", check=True, env={{}})
"""
"""As a gofer runs them, before the container."""


@dataclass
class Handler:
    """A handler, and a bundle whose container is to join a sandbox."""

    folder: Path
    id: str

    @property
    def pid_file(self) -> Path:
        return self.folder / "pid"

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = (str(self.folder / "program"), *words)
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)

    def create(self) -> subprocess.Popen[str]:
        """Begin to create it, as conmon does: its output is the container's."""
        words = ("create", "--bundle", str(self.folder / "bundle"), "--pid-file", str(self.pid_file), self.id)
        line = (str(self.folder / "program"), *words)
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def calls(self) -> list[str]:
        return [line.split()[0] for line in (self.folder / "calls").read_text().splitlines()]

    def place(self) -> Path:
        return Path("/run/fairlead-gvisor", self.id)


def spec(**more: Any) -> dict[str, Any]:
    network = {"type": "network", "path": "/proc/self/ns/net"}
    hook = {"path": shutil.which("true"), "args": ["true"]}
    return {"annotations": None, "linux": {"namespaces": [network]}, "hooks": {"createContainer": [hook]}, **more}


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[Handler]:
    runsc = tmp_path / "runsc"
    runsc.write_text(RUNSC.format(here=tmp_path, python=sys.executable))
    runsc.chmod(0o755)
    (tmp_path / "hooks.py").write_text(HOOKS.format(here=tmp_path))
    request = Request(folder="/usr/libexec/fairlead", gvisor=str(runsc), gvisor_flags=("debug",), python=sys.executable)
    program = tmp_path / "program"
    program.write_bytes(gvisor.launcher(request, "podman"))
    program.chmod(0o755)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/config.json").write_text(json.dumps(spec()))
    (tmp_path / "bundle" / sandboxfile.JOINS).write_text("root-id\n")
    one = Handler(tmp_path, f"fairlead-test-{os.getpid()}")
    yield one
    shutil.rmtree(one.place(), ignore_errors=True)


def until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_is_held_until_its_start_and_its_watcher_ends_with_it(handler: Handler) -> None:
    process = handler.create()
    until(handler.pid_file.exists)
    watcher = int(handler.pid_file.read_text())
    assert "fairlead-watch" in Path(f"/proc/{watcher}/cmdline").read_text()
    until(lambda: process.poll() is not None)
    assert json.loads(handler("state", handler.id).stdout)["status"] == "created"
    assert not (handler.folder / "ran").exists()
    assert handler.calls() == ["create", "start"]
    written = json.loads((handler.folder / "bundle/config.json").read_text())
    assert written["annotations"]["io.kubernetes.cri.sandbox-id"] == "root-id"
    assert len(written["hooks"]["createContainer"]) == 2
    done = handler("start", handler.id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (handler.folder / "ran").exists()
    assert handler("start", handler.id).returncode == 0  # podman asks again after a kill
    assert process.communicate(timeout=20) == ("running\n", "broken\n")
    assert handler.calls() == ["create", "start", "wait"]
    assert handler("delete", "--force", handler.id).returncode == 0
    assert not handler.place().exists()
    assert set((handler.folder / "flags").read_text().split()) == {"--debug", f"--log={handler.place()}/log"}


def test_the_watchers_exit_code_is_the_containers(handler: Handler) -> None:
    handler.place().mkdir(parents=True)
    (handler.folder / "hooks.py").write_text("")
    watch = ("fairlead-watch", handler.id, str(handler.place()))
    assert handler(*watch).returncode == 7
    (handler.folder / "fails").touch()
    assert handler(*watch).returncode == 1


def test_one_that_is_deleted_while_it_is_held_never_starts(handler: Handler) -> None:
    process = handler.create()
    until(handler.pid_file.exists)
    assert handler("delete", "--force", handler.id).returncode == 0
    assert "running" not in process.communicate(timeout=20)[0]
    assert not handler.place().exists()


def test_what_runsc_says_of_a_failed_start_is_said_of_the_create(handler: Handler) -> None:
    (handler.folder / "fails").touch()
    process = handler.create()
    said = process.communicate(timeout=20)[1]
    assert (process.returncode, said) == (1, "it failed\n")
    assert handler.calls()[-1] == "delete"
    assert not handler.place().exists()
    assert not handler.pid_file.exists()


def test_a_sandbox_that_is_gone_is_said(handler: Handler) -> None:
    (handler.folder / "refuses").touch()
    process = handler.create()
    assert "no sandbox" in process.communicate(timeout=20)[1]
    assert process.returncode == 1
    assert not handler.place().exists()


def test_a_watcher_that_is_killed_leaves_nothing_that_waits(handler: Handler) -> None:
    process = handler.create()
    until(handler.pid_file.exists)
    os.kill(int(handler.pid_file.read_text()), signal.SIGKILL)
    assert handler("start", handler.id).returncode == 1
    assert handler("delete", "--force", handler.id).returncode == 0
    process.communicate(timeout=20)


def test_a_watcher_that_cannot_begin_is_said(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisorpod, "_PATIENCE_S", 1)
    request = Request(folder="/x", gvisor=str(handler.folder / "runsc"), python=sys.executable)
    (handler.folder / "program").write_bytes(gvisor.launcher(request, "podman"))
    gone = {"namespaces": [{"type": "network", "path": "/proc/self/ns/none"}]}
    (handler.folder / "bundle/config.json").write_text(json.dumps(spec(linux=gone)))
    process = handler.create()
    assert "nothing within 1 s" in process.communicate(timeout=20)[1]
    assert process.returncode == 1
    assert not handler.place().exists()


def test_annotations_of_the_image_count_for_nothing(handler: Handler) -> None:
    marks = {"io.kubernetes.cri.sandbox-id": "another"}
    (handler.folder / "bundle/config.json").write_text(json.dumps(spec(annotations=marks)))
    process = handler.create()
    assert "the image has annotations for gVisor" in process.communicate(timeout=20)[1]
    assert process.returncode == 1
    assert not (handler.folder / "calls").exists()


def test_the_sandbox_of_a_pod_with_gpus_passes_calls_on(handler: Handler) -> None:
    bundle = handler.folder / "bundle"
    (bundle / sandboxfile.JOINS).unlink()
    (bundle / sandboxfile.PASSES).touch()
    assert handler("create", "--bundle", str(bundle), handler.id).returncode == 0
    assert (handler.folder / "flags").read_text().split() == ["--debug", "--nvproxy"]
