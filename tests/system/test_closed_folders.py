"""What other accounts of a machine reach of it, after each kind of volume, secret, log, checkpoint and socket was used.

`_OPEN` lists all that they may, with the page that says so; the walk tries each path that there is, as a user in no
group and as a member of api.group, also those that lie behind folders that can be passed but not listed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from home import Home, make_home

import fairlead

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(300)]

_GROUP, _GROUP_ID = "games", 60
_ANN, _NOBODY = 20001, 65534
_AS_USER: Final = Path(__file__).with_name("asuser.sh")
_IS_ROOT: Final = bytes.fromhex("b86b0000000f0589c7b83c0000000f05")
"""exit(geteuid()), in x86-64: mov eax,107; syscall; mov edi,eax; mov eax,60; syscall."""
_OPEN: Final = {
    # what others may do, by the path below the machine's folders                  the page that says so
    r"run": "rx",  # passed on the way to the socket                               docs/how-to/share-a-machine.md
    r"run/api\.sock": "c",  # members of api.group alone                            docs/how-to/share-a-machine.md
    r"cdi": "rx",  # specs say which device nodes a GPU has, never who has it      docs/how-to/share-a-machine.md
    r"cdi/[\w.-]+\.(json|yaml)(\.stamp)?": "r",  # the same                        docs/how-to/share-a-machine.md
    r"run/device-nodes": "x",  # passed by roots of containers; its nodes are root's  docs/how-to/share-a-machine.md
}
_WALK: Final = """
import json, os, socket, stat, sys
found = {}
for name, path in json.load(open(0)).items():
    try:
        kind = os.lstat(path).st_mode
    except OSError:
        continue
    if stat.S_ISLNK(kind):
        continue
    rights = "".join(word for word, flag in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK)) if os.access(path, flag))
    if stat.S_ISSOCK(kind):
        rights = ""
        with socket.socket(socket.AF_UNIX) as asked:
            try:
                asked.connect(path)
                rights = "c"
            except OSError:
                pass
    if rights:
        found[name] = rights
print(json.dumps(found))
"""


def _elf() -> bytes:
    """Return a program that ends with its effective user id."""
    base, size = 0x400000, 120 + len(_IS_ROOT)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    for value, width in ((2, 2), (62, 2), (1, 4), (base + 120, 8), (64, 8), (0, 8), (0, 4), (64, 2), (56, 2), (1, 2)):
        head += value.to_bytes(width, "little")
    head += bytes(6)
    for value, width in ((1, 4), (5, 4), (0, 8), (base, 8), (base, 8), (size, 8), (size, 8), (4096, 8)):
        head += value.to_bytes(width, "little")
    return head + _IS_ROOT


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A shared machine, whose folders may be reached by all as /var/lib and /run may; its umask is a shell's."""
    one = make_home(image)
    one.folder.chmod(0o755)
    before = os.umask(0o022)
    one.up("--api-group", _GROUP)
    yield one
    os.umask(before)
    one.close()
    shutil.rmtree(one.folder, ignore_errors=True)


def _closed_folders() -> str:
    ways = (Path(sys.prefix), Path(sys.base_prefix), Path(fairlead.__file__))
    closed = {one for way in ways for one in way.parents if not one.stat().st_mode & stat.S_IXOTH}
    return ":".join(sorted(map(str, closed)))


def _as(home: Home, uid: int, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program as a user; Ann is in the group."""
    groups = f"{uid},{_GROUP_ID}" if uid == _ANN else str(uid)
    whole = (str(_AS_USER), str(uid), groups, _closed_folders(), *argv)
    return subprocess.run(
        whole, env={**home.env, "HOME": "/"}, capture_output=True, text=True, timeout=60, check=False, input=stdin
    )


def _fairlead(home: Home, *words: str, stdin: str | None = None) -> str:
    done = _as(home, _ANN, sys.executable, "-m", "fairlead.cli.main", *words, stdin=stdin)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{home.log()[-3000:]}"
    return done.stdout


def _pod(home: Home) -> dict[str, Any]:
    """Return a pod with each kind of volume whose root leaves a set-uid program in every one."""
    elf = base64.b64encode(_elf()).decode()
    leave = f"for at in /disk /memory /data; do echo {elf} | base64 -d > $at/root; chmod 4777 $at/root; done"
    volumes: list[dict[str, Any]] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "secret", "secret": {"secretName": "token"}},
    ]
    main = {
        "name": "main",
        "image": home.image,
        "command": ["sh", "-c", f"{leave}; cp /data/root /root; chmod 4777 /root; mount; echo ready; sleep 1000"],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value"}}}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "volumeMounts": [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes],
    }
    spec = {"restartPolicy": "Never", "volumes": volumes, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "all"}, "spec": spec}


@pytest.fixture
def used(machine: Home) -> Home:
    """The machine, after all of it was used by a member of the group; the pod is made for each test."""
    _fairlead(machine, "secrets", "create", "--replace", "token", "-", stdin="rosebud\n")
    if "data" not in _fairlead(machine, "volume", "ls", "-o", "name"):
        _fairlead(machine, "volume", "create", "data")
    _fairlead(machine, "run", "-d", "-f", "-", stdin=json.dumps(_pod(machine)))
    machine.until_state("all", "running")
    machine.until(lambda: "ready" in machine("logs", "-n", f"user-{_ANN}", "all").out, what="its programs are left")
    assert _fairlead(machine, "exec", "all", "--", "cat", "/secret/value").strip() == "rosebud"
    return machine


def _paths(home: Home) -> dict[str, str]:
    """Return every path of the machine's folders as root sees it, by a name for the table."""
    found = {}
    for name, top in (("state", home.state), ("run", home.folder / "run"), ("cdi", Path("/run/cdi"))):
        for path in (top, *top.rglob("*")):
            found[str(Path(name) / path.relative_to(top))] = str(path)
    for name in ("/var/lib/containers", "/run/containers", "/run/libpod", "/run/runc"):
        for path in (Path(name), *Path(name).rglob("*")):
            if path.name in {"root", "hosts", "hostname"} or path.is_socket():
                found[str(path)] = str(path)
    for one in home.containers():
        inspected = json.loads(home.podman("inspect", one["Id"]))[0]
        for inside in ("root", "disk/root", "secret/value"):
            found[f"container:{inside}"] = f"/proc/{inspected['State']['Pid']}/root/{inside}"
        for key, path in (
            ("log", inspected["HostConfig"]["LogConfig"]["Path"]),
            ("bundle", inspected["OCIConfigPath"]),
        ):
            found[f"podman:{key}"] = path
    return found


@pytest.mark.parametrize("uid", [_NOBODY, _ANN])
def test_others_reach_nothing_that_the_table_does_not_list(used: Home, uid: int) -> None:
    paths = _paths(used)
    names = "\n".join(paths)
    for kind in (
        r"pods/[^/]+/volumes/disk/root",
        r"pods/[^/]+/volumes/memory/root",
        r"volumes/.*/root",
        r"state/kubelet/\w",
    ):
        assert re.search(kind, names), f"{kind} was not used:\n{names}"
    done = _as(used, uid, sys.executable, "-c", _WALK, stdin=json.dumps(paths))
    assert done.returncode == 0, done.stderr
    reached = json.loads(done.stdout)
    listed = {
        name: rights
        for name, rights in reached.items()
        for pattern, most in _OPEN.items()
        if re.fullmatch(pattern, name) and set(rights) <= set(most)
    }
    assert reached == listed, f"uid {uid} reaches what no page lists: {sorted(reached.items() - listed.items())}"
    assert ("run/api.sock" in reached) == (uid == _ANN)


def test_a_set_uid_program_that_a_containers_root_leaves_makes_nobody_root(used: Home) -> None:
    left = [path for path in used.state.rglob("root") if path.is_file()]
    assert {path.stat().st_mode & 0o7777 for path in left} == {0o4777}
    assert len(left) == 3
    for path in left:
        script = "import os, subprocess, sys\ntry:\n    print(subprocess.run([sys.argv[1]]).returncode)\n"
        script += "except OSError as error:\n    print(error.strerror)"
        done = _as(used, _ANN, sys.executable, "-c", script, str(path))
        assert done.stdout == "Permission denied\n", f"{path}: {done}"


def test_set_uid_programs_and_devices_have_no_effect_in_a_volume_inside_either(used: Home) -> None:
    mounted = {line.split()[2]: line for line in _fairlead(used, "logs", "all").splitlines() if " on /" in line}
    for place in ("/disk", "/memory", "/data", "/secret"):
        assert "nosuid" in mounted[place], mounted[place]
        assert "nodev" in mounted[place], mounted[place]


def test_what_was_open_is_closed_by_a_start_and_named_by_doctor(used: Home) -> None:
    for name in ("state", "state/pods", "run/device-plugins"):
        (used.folder / name).chmod(0o755)
    said = " ".join(used("doctor").out.split())
    assert f"{used.state} is open to other users (mode 0755)" in said
    used.kill()
    used.up("--api-group", _GROUP)
    for name in ("state", "state/pods", "run/device-plugins"):
        assert (used.folder / name).stat().st_mode & 0o777 == 0o700
    assert "folder closed to other users" in used.log()
    assert "open to other users" not in used("doctor").out
