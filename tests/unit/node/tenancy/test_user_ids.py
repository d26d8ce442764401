"""User namespaces of tenancies' containers: which ids, which pods, and whose files a volume's become."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.engine.podman import args
from fairlead.engine.port import Bind, ContainerSpec
from fairlead.node.isolation.edits import Resolved
from fairlead.node.tenancy import userids as node
from fairlead.plan.tenancy import userids

FIRST = userids.FIRST + 7 * userids.SIZE
NODES = Path("/run/fairlead/device-nodes")
SPEC = ContainerSpec(name="a", image="localhost/a", cdi_devices=("k8s.fairlead.dev/gpu=0",), env={"A": "b"})


def test_each_tenancy_has_a_range_of_its_own_in_what_belongs_to_nobody_else() -> None:
    taken: set[int] = set()
    for number in range(500):
        first = userids.choose(f"uid-{number}", taken)
        assert first not in taken
        assert userids.FIRST <= first <= userids.LAST - userids.SIZE + 1
        assert first % userids.SIZE == 0
        taken.add(first)
    assert userids.choose("uid-1", ()) == userids.choose("uid-1", ())


def test_the_last_range_is_found_and_then_there_is_none() -> None:
    every = set(range(userids.FIRST, userids.LAST, userids.SIZE))
    for is_user, place in ((False, 4), (True, 3)):
        one = userids.FIRST + place * userids.SIZE
        assert userids.choose("any", every - {one}, is_user=is_user) == one
        with pytest.raises(errors.Insufficient, match="all 2047 ranges"):
            userids.choose("any", every, is_user=is_user)


def test_a_user_and_a_tenancy_never_choose_the_same_range() -> None:
    tenancies = {userids.choose(f"one-{number}", ()) for number in range(500)}
    users = {userids.choose(f"one-{number}", (), is_user=True) for number in range(500)}
    assert not tenancies & users
    assert max(users) <= userids.LAST - userids.SIZE + 1


@pytest.mark.parametrize(
    ("identity", "first", "becomes"),
    [
        (0, FIRST, FIRST),
        (1000, FIRST, FIRST + 1000),
        (FIRST + 1000, FIRST, FIRST + 1000),
        (userids.FIRST + 5, FIRST, FIRST + 5),
        (FIRST + 1000, 0, 1000),
        (100_000, FIRST, 100_000),
    ],
)
def test_an_id_moves_from_one_range_to_another_and_what_is_in_none_stays(
    identity: int, first: int, becomes: int
) -> None:
    assert userids.shifted(identity, first) == becomes


def _machine(root: Path, *, most: str = "96343", rows: str = "0 0 4294967295", has: bool = True) -> Path:
    for place, text in (("proc/sys/user/max_user_namespaces", most), ("proc/self/uid_map", rows)):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(f"{text}\n")
    if has:
        (root / "proc/self/ns").mkdir()
        (root / "proc/self/ns/user").touch()
    return root


def test_a_machine_that_can_have_them_has_no_problem(tmp_path: Path) -> None:
    assert node.machine_problem(_machine(tmp_path)) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"has": False}, "CONFIG_USER_NS"),
        ({"most": "0"}, "max_user_namespaces is 0"),
        ({"rows": "0 100000 65536"}, "itself is in a user namespace"),
    ],
)
def test_a_machine_that_cannot_says_why(tmp_path: Path, change: dict[str, str], words: str) -> None:
    assert words in node.machine_problem(_machine(tmp_path, **change))  # type: ignore[arg-type]


def test_a_hook_and_a_node_that_nobody_reaches_keep_a_pod_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    source = str(tmp_path / "dev/nvidia0")
    assert "is closed" in node.pod_problem([Resolved(), Resolved(nodes=((source, source, "rw"),))], NODES)
    # One that is shown elsewhere is bound, and its source is opened by root; a node of its numbers must be reached.
    moved = [Resolved(nodes=((source, "/dev/nvidia0", "rw"),))]
    assert node.pod_problem(moved, NODES) == ""
    assert "is closed" in node.pod_problem(moved, tmp_path / "nodes")
    assert "/usr/bin/hook, which" in node.pod_problem([Resolved(hooks=("/usr/bin/hook",))], NODES)
    assert node.pod_problem([Resolved(nodes=(("/dev/null", "/dev/null", "rw"),))], tmp_path / "nodes") == ""


def test_a_pod_gets_its_owners_ids_or_the_reason_why_not_and_is_refused_where_it_must(tmp_path: Path) -> None:
    root = _machine(tmp_path)
    red = userids.Owner(name='tenancy "red"', first=FIRST)
    hooked = Resolved(hooks=("/usr/bin/hook",))
    assert node.decide(red, [], NODES, setting="always", root=root) == (FIRST, "")
    assert node.decide(red, [hooked], NODES, setting="auto", root=root)[0] is None
    new = userids.Owner(name="user 7", first=0)
    assert "no user ids yet" in node.decide(new, [], NODES, setting="auto", root=root)[1]
    assert node.decide(red, [], NODES, setting="never", root=root) == (None, "")
    with pytest.raises(errors.Unavailable, match='tenancy "red" has no user namespace: /usr/bin/hook') as caught:
        node.decide(red, [hooked], NODES, setting="always", root=root)
    assert "engine.user_namespaces" in (caught.value.hint or "")


def test_folders_of_the_machine_are_mounted_into_a_user_namespace_or_not_at_all(tmp_path: Path) -> None:
    root = _machine(tmp_path)
    red = userids.Owner(name='tenancy "red"', first=FIRST)
    hooked = Resolved(hooks=("/usr/bin/hook",))
    assert node.decide(red, [], NODES, setting="auto", has_mounts=True, root=root) == (FIRST, "")
    for owner, found, setting, why in (
        (red, [hooked], "auto", "/usr/bin/hook, which"),
        (red, [], "never", "engine.user_namespaces is never"),
        (None, [], "auto", "no user ids yet"),
    ):
        with pytest.raises(errors.Unavailable, match="that mounts folders of the machine") as caught:
            node.decide(owner, found, NODES, setting=setting, has_mounts=True, root=root)
        assert why in caught.value.message


def test_devices_at_their_own_place_are_left_to_the_engine(tmp_path: Path) -> None:
    found = Resolved(nodes=(("/dev/nvidia0", "/dev/nvidia0", "rw"),))
    wanted = node.mapped(SPEC, FIRST, found, tmp_path / "nodes")
    assert (wanted.cdi_devices, wanted.first_user_id) == (SPEC.cdi_devices, FIRST)
    assert node.mapped(SPEC, None, found, tmp_path) is SPEC


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_devices_from_elsewhere_are_bound_with_all_that_their_specs_say(tmp_path: Path) -> None:
    found = Resolved(
        nodes=(("/dev/zero", "/dev/nvidia0", "rw"), ("/dev/null", "/dev/null", "rwm")),
        binds=(("/lib/a.so", "/usr/a.so", True),),
        env=("C=d=e",),
    )
    wanted = node.mapped(SPEC, FIRST, found, tmp_path / "nodes")
    assert wanted.cdi_devices == ()
    assert wanted.env == {"A": "b", "C": "d=e"}
    made = tmp_path / "nodes" / "c-1-5"
    assert wanted.device_nodes == (("/dev/null", "/dev/null", "rwm"), (str(made), str(made), "rw"))
    assert (made.stat().st_rdev, made.stat().st_mode) == (os.makedev(1, 5), stat.S_IFCHR | 0o600)
    assert node.mapped(SPEC, FIRST, found, tmp_path / "nodes") == wanted
    assert wanted.binds == (
        Bind(host_path="/lib/a.so", container_path="/usr/a.so", is_read_only=True),
        Bind(host_path="/dev/zero", container_path="/dev/nvidia0", is_device=True),
    )


def test_a_device_from_elsewhere_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="/none/nvidia0") as caught:
        node.mapped(SPEC, FIRST, Resolved(nodes=(("/none/nvidia0", "/dev/nvidia0", "rw"),)), tmp_path)
    assert caught.value.reason == "DeviceNodeMissing"


def test_podman_is_told_the_range_or_the_container_that_has_it() -> None:
    options = args._user_namespace(ContainerSpec(name="a", image="b", first_user_id=FIRST))
    assert options == [f"--uidmap=0:{FIRST}:65536", f"--gidmap=0:{FIRST}:65536"]
    joined = ContainerSpec(name="a", image="b", first_user_id=FIRST, network_of="box")
    assert args._user_namespace(joined) == ["--userns=container:box"]
    assert args._user_namespace(ContainerSpec(name="a", image="b")) == []
    assert args._bind(Bind(host_path="/a", container_path="/b", is_device=True)) == ["--volume=/a:/b:rw,dev"]


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away")
def test_a_volume_becomes_the_tenancys_with_all_in_it_and_no_link_is_followed(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "deep").mkdir(parents=True)
    (volume / "deep/file").write_text("x")
    os.chown(volume / "deep/file", 1000, 1000)
    (volume / "tool").touch(mode=0o755)
    (volume / "tool").chmod(0o4755)
    outside.touch()
    (volume / "link").symlink_to(outside)
    for _ in range(2):
        node.own(volume, FIRST)
    assert volume.stat().st_uid == (volume / "tool").stat().st_uid == FIRST
    assert (volume / "deep/file").stat().st_gid == FIRST + 1000
    assert (volume / "tool").stat().st_mode & 0o7777 == 0o4755
    assert outside.stat().st_uid == 0
    assert (volume / "link").lstat().st_uid == FIRST
    node.own(volume, 0)
    assert ((volume / "deep/file").stat().st_uid, volume.stat().st_uid) == (1000, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_a_link_put_in_a_files_place_meanwhile_gets_no_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tenant's other container may be at work in the volume: a program of the host would be setuid."""
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    volume.mkdir()
    (volume / "tool").touch()
    (volume / "tool").chmod(0o4755)
    outside.touch(0o600)
    give = os.chown

    def swapped(path: str, uid: int, gid: int, *, dir_fd: int | None, follow_symlinks: bool) -> None:
        give(path, uid, gid, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        if path == "tool":
            (volume / "tool").unlink()
            (volume / "tool").symlink_to(outside)

    monkeypatch.setattr(os, "chown", swapped)
    with pytest.raises(OSError, match="symbolic links"):
        node.own(volume, FIRST)
    assert outside.stat().st_mode & 0o7777 == 0o600
