"""The engine's hosts file of a container: found by its mounts, changed in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.node.kubelet import hostsfile

_ID = "a" * 64


def _proc(root: Path, pid: int | str, *lines: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mountinfo").write_text("".join(f"{line} rw - tmpfs tmpfs rw\n" for line in lines))


def test_the_file_is_found_on_the_host_by_its_file_system(tmp_path: Path) -> None:
    inner = f"/containers/storage/overlay-containers/{_ID}/userdata/hosts"
    _proc(tmp_path, 7, "1 0 0:99 / /", f"2 1 0:24 {inner} /etc/hosts")
    _proc(tmp_path, "self", "1 0 8:1 / /", "2 1 0:24 / /run")
    assert hostsfile.find(7, tmp_path) == Path(f"/run{inner}")


@pytest.mark.parametrize("inner", ["/volumes/mine", "/x/userdata/hosts", "/etc/passwd"])
def test_a_file_that_is_not_the_engine_s_is_left_alone(tmp_path: Path, inner: str) -> None:
    _proc(tmp_path, 7, f"2 1 0:24 {inner} /etc/hosts")
    _proc(tmp_path, "self", "2 1 0:24 / /run")
    assert hostsfile.find(7, tmp_path) is None


def test_a_process_that_is_gone_or_has_none_has_no_file(tmp_path: Path) -> None:
    _proc(tmp_path, "self", "2 1 0:24 / /run")
    assert hostsfile.find(7, tmp_path) is None
    _proc(tmp_path, 7, "2 1 0:24 / /run")
    assert hostsfile.find(7, tmp_path) is None


def test_the_file_stays_the_same_one_and_a_link_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    number = file.stat().st_ino
    assert hostsfile.write(file, ["10.0.0.2\tweb web.n.svc.cluster.local"])
    assert not hostsfile.write(file, ["10.0.0.2\tweb web.n.svc.cluster.local"])
    assert hostsfile.write(file, [])
    assert (file.read_text(), file.stat().st_ino) == ("127.0.0.1 localhost\n", number)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic"):
        hostsfile.write(tmp_path / "link", ["x"])
