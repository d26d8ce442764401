"""What a held process has mounted is compared with what a tenant's path leads to, links and exchanges included."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.kubelet import hostpath
from fairlead.wire.kubernetes import core, meta, names

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace")
Holder = Callable[..., int]


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Holder]:
    """Start a process that has bound folders in a mount namespace of its own, and return its pid."""
    started: list[subprocess.Popen[str]] = []

    def hold(*sources: Path | str, mode: str = "rw") -> int:
        lines = []
        for number, source in enumerate(sources):
            point = tmp_path / f"at {number}"
            point.mkdir(exist_ok=True)
            lines.append(f"mount --rbind {shlex.quote(str(source))} {shlex.quote(str(point))}")
            if mode == "ro":
                lines.append(f"mount -o remount,bind,ro {shlex.quote(str(point))}")
        script = " && ".join((*lines, "echo held", "exec sleep 60"))
        child = subprocess.Popen(("unshare", "-m", "sh", "-c", script), stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        return child.pid

    yield hold
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tenant's folder on the node, with a blank in its name."""
    made = tmp_path / "a b"
    (made / "data").mkdir(parents=True)
    return made


@needs_root
def test_what_the_path_leads_to_is_taken_links_and_all(folder: Path, holding: Holder) -> None:
    (folder / "link").symlink_to("data")
    hostpath.check(holding(folder / "data"), [str(folder / "link")], ())
    hostpath.check(holding(folder, folder / "data"), [str(folder), f"{folder}/./data/../link"], ())


@needs_root
@pytest.mark.parametrize("target", ["/etc", "/", "/proc/self/root/etc", "/dev"])
def test_a_link_to_a_guarded_folder_is_refused(folder: Path, holding: Holder, target: str) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(errors.Denied, match="on this node: hostPath") as refused:
        hostpath.check(holding(target), [str(folder / "link")], ())
    assert refused.value.reason == hostpath.FORBIDDEN


@needs_root
def test_a_link_that_was_exchanged_before_the_look_is_seen_by_what_is_mounted(folder: Path, holding: Holder) -> None:
    pid = holding("/etc")  # what the engine met
    (folder / "link").symlink_to("data")  # what stands there when we look
    with pytest.raises(errors.Denied, match="something else than what hostPath"):
        hostpath.check(pid, [str(folder / "link")], ())


@needs_root
def test_what_the_process_has_mounted_outside_the_containers_root_counts_for_nothing(
    tmp_path: Path, folder: Path, holding: Holder
) -> None:
    """A gofer that is held has the whole host beside the container's root."""
    pid = holding("/etc", folder / "data")
    hostpath.check(pid, [str(folder / "data")], (), root=str(tmp_path))
    for root in (tmp_path / "at 0", tmp_path / "at"):
        with pytest.raises(errors.Denied, match="something else"):
            hostpath.check(pid, [str(folder / "data")], (), root=str(root))


@needs_root
def test_one_good_mount_does_not_stand_for_two(folder: Path, holding: Holder) -> None:
    pid = holding(folder / "data", "/etc")
    with pytest.raises(errors.Denied, match="something else"):
        hostpath.check(pid, [str(folder / "data"), str(folder / "data")], ())


@needs_root
def test_a_file_system_of_its_own_is_told_from_a_folder_of_the_same_name(folder: Path, holding: Holder) -> None:
    pid = holding("/dev/shm")
    with pytest.raises(errors.Denied):
        hostpath.check(pid, [str(folder)], ())


@needs_root
def test_our_own_folders_are_guarded_where_their_links_lead(folder: Path, tmp_path: Path, holding: Holder) -> None:
    (tmp_path / "state").symlink_to(folder / "data")
    with pytest.raises(errors.Denied, match="leads to GPU devices"):
        hostpath.check(holding(folder / "data"), [str(folder / "data")], (tmp_path / "state",))
    with pytest.raises(errors.Denied, match="leads to GPU devices"):
        hostpath.check(holding(folder), [str(folder)], (tmp_path / "state",))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in a place that is root's alone, as a lab's data is."""
    made = Path(tempfile.mkdtemp(prefix="shared-", dir="/srv"))
    made.chmod(0o755)
    (made / "data").mkdir()
    yield made
    shutil.rmtree(made)


@needs_root
def test_a_listed_folder_is_mounted_read_only(shared: Path, holding: Holder, tmp_path: Path) -> None:
    inside = str(shared / "data")
    hostpath.check_listed(holding(inside, mode="ro"), [inside], [str(shared)])
    hostpath.check_listed(holding(inside), [inside], [str(shared)], root=str(tmp_path / "elsewhere"))
    with pytest.raises(errors.Denied, match="would be writable in the container"):
        hostpath.check_listed(holding(inside), [inside], [str(shared)])


@needs_root
def test_a_link_out_of_the_listed_folder_is_refused(shared: Path, folder: Path, holding: Holder) -> None:
    (shared / "link").symlink_to(folder)
    with pytest.raises(errors.Denied, match=r"lies in no folder of api\.mounts"):
        hostpath.check_listed(holding(folder, mode="ro"), [str(shared / "link")], [str(shared)])


@needs_root
def test_what_lies_behind_a_closed_folder_is_nobodys_to_mount(shared: Path, holding: Holder) -> None:
    (shared / "ben" / "open").mkdir(parents=True)
    (shared / "ben").chmod(0o700)
    inside = str(shared / "ben" / "open")
    with pytest.raises(errors.Denied, match="which is closed to others"):
        hostpath.check_listed(holding(inside, mode="ro"), [inside], [str(shared)])
    itself = str(shared / "ben")  # the kernel asks for its rights
    hostpath.check_listed(holding(itself, mode="ro"), [itself], [str(shared)])


@needs_root
def test_a_writable_file_system_below_is_found(shared: Path, holding: Holder) -> None:
    subprocess.run(("mount", "-t", "tmpfs", "tmpfs", str(shared / "data")), check=True)
    try:
        with pytest.raises(errors.Denied, match="would be writable"):
            hostpath.check_listed(holding(shared, mode="ro"), [str(shared)], [str(shared)])
    finally:
        subprocess.run(("umount", str(shared / "data")), check=True)


@needs_root
def test_a_listed_folder_that_another_can_exchange_is_not_used(folder: Path, holding: Holder) -> None:
    folder.chmod(0o777)  # a user who may write here can put a link where `data` is
    inside = str(folder / "data")
    assert "can be exchanged" in hostpath.exchangeable(inside)
    assert "cannot be read" in hostpath.exchangeable(str(folder / "none"))
    assert hostpath.exchangeable("/usr/share") == ""
    with pytest.raises(errors.Denied, match="lies in no folder"):
        hostpath.check_listed(holding(inside, mode="ro"), [inside], [inside])


def test_what_is_not_there_and_a_process_that_has_ended_are_refused(folder: Path) -> None:
    with pytest.raises(errors.Denied, match="leads nowhere"):
        hostpath.check(os.getpid(), [str(folder / "none")], ())
    with pytest.raises(errors.Denied, match="something else"):
        hostpath.check(2**22 + 1, [str(folder)], ())


def test_who_is_bound_is_known_by_namespace_or_by_the_request() -> None:
    plain, tenants = (
        core.Namespace(metadata=meta.ObjectMeta(name="n", labels=labels))
        for labels in ({}, {"fairlead.dev/tenancy": "x"})
    )
    pod = core.Pod(metadata=meta.ObjectMeta(name="p"))
    asked = core.Pod(metadata=meta.ObjectMeta(name="p", annotations={names.TENANT: "x"}))
    found = [hostpath.is_tenants(one, place) for one in (pod, asked) for place in (None, plain, tenants)]
    assert found == [False, False, True, True, True, True]
