"""A machine that several people share: the socket's group, and each of them with containers of their own.

The users are real to the kernel (numbers without names, as of a directory that is away); their command line is the real
one. What they may ask for at all is tested route by route in tests/unit/serve/v1/test_api_users.py.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import COMMAND, Home, Result, make_home

import fairlead
from fairlead.kernel import inotify
from fairlead.plan.tenancy import userids

pytestmark = pytest.mark.podman

GROUP, GROUP_ID = "games", 60
ANN, BEN, EVE = 20001, 20002, 20003
"""Eve is not in the group."""
_AS_USER = Path(__file__).with_name("asuser.sh")


@pytest.fixture(scope="module")
def datasets() -> Iterator[Path]:
    """A lab's data: what every account may read, and what a member keeps to themselves."""
    made = Path(tempfile.mkdtemp(prefix="datasets-", dir="/srv"))
    made.chmod(0o1777)  # members put data here
    (made / "images").mkdir()
    (made / "images" / "first").write_text("a picture\n")
    (made / "sealed").write_text("root's own\n")
    (made / "sealed").chmod(0o600)
    (made / "ben" / "open").mkdir(parents=True)
    (made / "ben" / "open" / "notes").write_text("ben's own\n")
    os.chown(made / "ben", BEN, BEN)
    (made / "ben").chmod(0o700)
    (made / "way-out").symlink_to("/usr/share")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def shared(image: str, datasets: Path) -> Iterator[Home]:
    one = make_home(image)
    one.folder.chmod(0o755)
    before = os.umask(0o077)  # as in the shell of a careful root
    try:
        one.up("--api-group", GROUP, "--api-user-gpus", "3", "--api-mounts", str(datasets))
    finally:
        os.umask(before)
    yield one
    one.close()
    shutil.rmtree(one.folder, ignore_errors=True)


def _closed_folders() -> str:
    """Return what on the way to the program only root may pass."""
    ways = (Path(sys.prefix), Path(sys.base_prefix), Path(fairlead.__file__))
    closed = {one for way in ways for one in way.parents if not one.stat().st_mode & stat.S_IXOTH}
    return ":".join(sorted(map(str, closed)))


def _as(home: Home, uid: int, *arguments: str, stdin: str | None = None) -> Result:
    """Run one command line as a user."""
    groups = str(uid) if uid == EVE else f"{uid},{GROUP_ID}"
    argv = (str(_AS_USER), str(uid), groups, _closed_folders(), *COMMAND, *arguments)
    done = subprocess.run(
        argv, env={**home.env, "HOME": "/"}, capture_output=True, text=True, timeout=60, check=False, input=stdin
    )
    return Result(done.returncode, done.stdout, done.stderr)


def _ok(home: Home, uid: int, *arguments: str) -> Result:
    done = _as(home, uid, *arguments)
    assert done.code == 0, f"{arguments} as {uid}: {done.code}\n{done.out}\n{done.err}\n{home.log()[-3000:]}"
    return done


def _names(home: Home, uid: int) -> list[str]:
    return [item["name"] for item in _ok(home, uid, "ps", "-a", "-o", "json").data]


def _ids(home: Home, uid: int, name: str) -> tuple[int, int]:
    """Return the host's first id and the number of ids of a user's container, as the kernel has them."""
    (one,) = [
        row
        for row in home.containers()
        if row["Labels"]["io.kubernetes.pod.namespace"] == f"user-{uid}"
        and row["Labels"]["io.kubernetes.pod.name"] == name
        and row["Labels"].get("io.kubernetes.container.name")
    ]
    pid = json.loads(home.podman("inspect", one["Id"]))[0]["State"]["Pid"]
    inside, outside, count = map(int, Path(f"/proc/{pid}/uid_map").read_text().split())
    assert inside == 0
    return outside, count


def test_two_people_run_see_and_end_containers_of_their_own(shared: Home) -> None:
    for uid in (ANN, BEN):
        _ok(shared, uid, "run", "-d", "--name", "train", "-g", "2", shared.image, "--", "sh", "-c", "id; sleep 1000")
    for uid in (ANN, BEN):
        assert _names(shared, uid) == ["train"]
        assert "nvidia" in _ok(shared, uid, "exec", "train", "--", "ls", "/dev").out
        assert "uid=0" in _ok(shared, uid, "logs", "train").out
    # Root of either is a user of the host that owns nothing, and no other's.
    ids = [_ids(shared, uid, "train") for uid in (ANN, BEN)]
    assert len(set(ids)) == 2
    assert all(first >= userids.FIRST and count == userids.SIZE for first, count in ids)
    both = {(item["namespace"], item["name"]) for item in shared.ok("ps", "-o", "json").data}
    assert both == {(f"user-{ANN}", "train"), (f"user-{BEN}", "train")}
    _ok(shared, ANN, "rm", "-f", "--grace", "0", "train")
    assert (_names(shared, ANN), _names(shared, BEN)) == ([], ["train"])
    # What is ben's, ann finds under no name.
    for verb in ("logs", "stop", "rm", "trace", "explain", "inspect"):
        assert _as(shared, ANN, verb, "train").code == 2, verb
        assert "is not yours" in _as(shared, ANN, verb, "-n", f"user-{BEN}", "train").err, verb
    stolen = _as(shared, ANN, "exec", "-n", f"user-{BEN}", "train", "--", "id")
    assert (stolen.code, "is not yours" in stolen.err, stolen.out) == (3, True, "")
    assert _names(shared, BEN) == ["train"]
    _ok(shared, BEN, "rm", "-f", "--grace", "0", "train")


def test_a_user_holds_no_more_gpus_than_the_machine_allows(shared: Home) -> None:
    refused = _as(shared, ANN, "run", "--name", "big", "-g", "4", shared.image, "--", "true")
    assert (refused.code, 'the quota "api.user_gpus" allows' in refused.err) == (3, True)
    shared.ok("quota", "set", "--user", str(ANN), "--gpus", "4")
    try:
        assert _ok(shared, ANN, "run", "--rm", "-g", "4", shared.image, "--", "true").code == 0
    finally:
        shared.ok("quota", "rm", "-n", f"user-{ANN}", "gpus")


def test_a_user_gets_no_file_of_the_host(shared: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's own\n")
    for option in (("-v", f"{secret}:/x"), ("-v", "/:/host"), ("--mount", "type=bind,source=/etc,target=/x")):
        answer = _as(shared, ANN, "run", "--rm", *option, shared.image, "--", "ls", "/x")
        assert (answer.code, "only root may" in answer.err) == (3, True), answer
    for arguments in (("image", "import", "/etc", "localhost/loot:1"), ("image", "rm", shared.image)):
        assert _as(shared, ANN, *arguments).code == 3


def test_a_user_reads_the_labs_data_and_writes_nothing_of_it(shared: Home, datasets: Path) -> None:
    option = ("-v", f"{datasets}:/d:ro")
    read = "cat /d/images/first; cat /d/sealed /d/ben/open/notes; touch /d/images/mine; mount -o remount,rw /d"
    answer = _as(shared, ANN, "run", "--rm", "-g", "1", *option, shared.image, "--", "sh", "-c", read)
    assert "a picture" in answer.out, answer
    assert answer.err.count("Permission denied") + answer.out.count("Permission denied") >= 2, answer
    assert "own" not in answer.out.replace("unknown", ""), answer
    assert "Read-only file system" in answer.err + answer.out
    assert not (datasets / "images" / "mine").exists()
    below = _as(shared, ANN, "run", "--rm", "-v", f"{datasets}/images:/d:ro", shared.image, "--", "cat", "/d/first")
    assert (below.code, below.out) == (0, "a picture\n")


def test_a_user_mounts_nothing_but_the_labs_data(shared: Home, datasets: Path) -> None:
    for option, code, why in (
        (f"{datasets}:/d", 3, f"write -v {datasets}:/d:ro"),
        ("/usr/share:/d:ro", 3, f"people may mount {datasets}"),
        (f"{datasets}/../../etc:/d:ro", 3, "only root may"),
        (f"{datasets}/way-out:/d:ro", None, "lies in no folder of api.mounts"),
        (f"{datasets}/ben/open:/d:ro", None, "which is closed to others"),
    ):
        answer = _as(shared, ANN, "run", "--name", "probe", "-v", option, shared.image, "--", "ls", "/d")
        assert answer.code == code if code else answer.code != 0, answer
        assert why in answer.err + answer.out, answer
        shared("rm", "-f", "--grace", "0", "-n", f"user-{ANN}", "probe")


def test_a_users_container_holds_a_share_of_inotify_instances(shared: Home) -> None:
    read = ("cat", "/proc/sys/user/max_inotify_instances")
    answer = _ok(shared, ANN, "run", "--rm", "-g", "1", shared.image, "--", *read)
    assert int(answer.out) == inotify.share()


def test_who_is_not_in_the_group_is_told_what_to_ask_for(shared: Home) -> None:
    answer = _as(shared, EVE, "ps")
    assert answer.code == 6
    assert f'members of group "{GROUP}", and {EVE} is not one' in answer.err
    assert f"usermod -aG {GROUP} {EVE}" in answer.err


def test_what_lies_beside_the_socket_is_roots(shared: Home) -> None:
    found = shared.folder / "run" / "api.sock"
    about = found.stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o660, 0, GROUP_ID)
    script = (
        "import json, os, socket, sys; from pathlib import Path\n"
        "opened = []\n"
        "for path in Path(sys.argv[1]).rglob('*'):\n"
        "    try:\n"
        "        if path.is_socket():\n"
        "            socket.socket(socket.AF_UNIX).connect(str(path))\n"
        "        elif path.is_file():\n"
        "            path.open('rb').close()\n"
        "        else:\n"
        "            continue\n"
        "        opened.append(path.name)\n"
        "    except OSError: pass\n"
        "print(json.dumps(opened))"
    )
    argv = (str(_AS_USER), str(ANN), f"{ANN},{GROUP_ID}", _closed_folders(), sys.executable, "-c", script)
    done = subprocess.run((*argv, str(shared.folder)), capture_output=True, text=True, check=True)
    opened = set(json.loads(done.stdout))
    assert "api.sock" in opened
    assert not [name for name in opened if name.endswith(".sock") and name != "api.sock"], opened
    assert not [name for name in opened if name.startswith("state.db") or "checkpoint" in name], opened


def test_a_group_that_is_not_there_is_refused_by_name(home: Home) -> None:
    home.up("--api-group", "no-such-group", wait=False)
    assert home.process is not None
    assert home.process.wait(120) == 2
    assert 'this machine has no group "no-such-group"' in home.log()
    assert "groupadd --system no-such-group" in home.log()


def test_without_a_group_the_socket_is_roots_alone(home: Home) -> None:
    home.folder.chmod(0o755)
    home.up()
    answer = _as(home, ANN, "ps")
    assert (answer.code, "may be opened by root only" in answer.err, "api.group" in answer.err) == (6, True, True)


_PLANTED = """
apiVersion: v1
kind: Pod
metadata: {{name: planter}}
spec:
  containers:
  - name: main
    image: {image}
    command: [sh, -c, "for one in disk memory; do cp /bin/busybox /$one/root; chmod 4755 /$one/root;
      chmod 777 /$one; done; echo said; sleep 1000"]
    volumeMounts: [{{name: disk, mountPath: /disk}}, {{name: memory, mountPath: /memory}}]
  volumes: [{{name: disk, emptyDir: {{}}}}, {{name: memory, emptyDir: {{medium: Memory}}}}]
"""
_REACHABLE = {
    "run": "docs/how-to/share-a-machine.md: the socket's folder is passed by whoever may open the socket",
    "run/api.sock": "docs/how-to/share-a-machine.md: the group's",
    "run/device-nodes": "docs/how-to/share-a-machine.md: passed by roots of containers; its nodes are root's",
}
"""What accounts of the machine may do something with, below the service's folders, and the page that says so."""


def _reached(home: Home, uid: int) -> set[str]:
    """Return what a user of the host may read, write or execute below the service's folders, by the kernel's word."""
    groups = str(uid) if uid == EVE else f"{uid},{GROUP_ID}"
    line = ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--groups", groups, "--", "find", str(home.folder))
    more = ("-mindepth", "1", "(", "-readable", "-o", "-writable", "-o", "-executable", ")", "-printf", "%P\n")
    return set(subprocess.run((*line, *more), capture_output=True, text=True, check=False).stdout.splitlines())


def test_nothing_that_containers_write_or_are_given_is_within_reach_of_another_account(shared: Home) -> None:
    """A program that a container's root makes set-user-id would make any user of the host root, if they reached it."""
    manifest = shared.folder / "planter.yaml"
    manifest.write_text(_PLANTED.format(image=shared.image))
    manifest.chmod(0o600)
    posted = _as(shared, ANN, "run", "-d", "-f", "-", stdin=manifest.read_text())
    assert posted.code == 0, posted.err
    shared.until(lambda: "said" in _as(shared, ANN, "logs", "planter").out, what="the file is planted")
    planted = [path for path in (shared.state / "pods").rglob("root") if path.stat().st_mode & stat.S_ISUID]
    assert len(planted) == 2
    # They are there, and belong to a user that owns nothing else.
    assert all(path.stat().st_uid == _ids(shared, ANN, "planter")[0] for path in planted)
    for uid in (ANN, EVE):
        assert {path for path in _reached(shared, uid) if path != "up.log"} <= set(_REACHABLE)
        for path in planted:
            line = ("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--", str(path), "id", "-u")
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            assert done.returncode != 0, done.stdout
    assert "run/api.sock" in _reached(shared, ANN)
    assert "run/api.sock" not in _reached(shared, EVE)
    _ok(shared, ANN, "rm", "-f", "--grace", "0", "planter")
