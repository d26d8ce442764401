"""Folders of a pod's volumes: on disk, in memory, of claims, and of users of another range."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel.mounting import tmpfs
from fairlead.node.kubelet import volumes
from fairlead.plan.pod.values import secret
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.volume import SecretVolume

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and gives files away")
FIRST = 1 << 24


def pod(*found: core.Volume) -> core.Pod:
    return core.Pod(spec=core.PodSpec(volumes=found))


DISK = core.Volume(name="disk", empty_dir=core.EmptyDirVolume())
MEMORY = core.Volume(name="memory", empty_dir=core.EmptyDirVolume(medium="Memory", size_limit="1Mi"))
CLAIM = core.Volume(name="data", persistent_volume_claim=core.ClaimVolume(claim_name="data"))
SECRET = core.Volume(name="db", secret=SecretVolume(secret_name="db"))


def test_a_folder_of_the_host_stays_as_it_is_and_one_on_disk_is_everybodys(tmp_path: Path) -> None:
    host = core.Volume(name="host", host_path=core.HostPathVolume(path=str(tmp_path)))
    mode = tmp_path.stat().st_mode
    found = volumes.ensure(tmp_path / "pod", pod(host, DISK))
    assert found == {"host": tmp_path, "disk": tmp_path / "pod/volumes/disk"}
    assert (tmp_path.stat().st_mode, found["disk"].stat().st_mode & 0o777) == (mode, 0o777)
    assert volumes.ensure(tmp_path / "pod", pod(host, DISK)) == found


def test_a_pods_folder_and_the_one_above_are_closed_to_others_also_where_they_were_open(tmp_path: Path) -> None:
    pods = tmp_path / "pods"
    (pods / "one").mkdir(parents=True)
    for folder in (pods, pods / "one"):
        folder.chmod(0o755)
    volumes.ensure(pods / "one", pod(DISK))
    assert [folder.stat().st_mode & 0o777 for folder in (pods, pods / "one")] == [0o700, 0o700]
    volumes.ensure(pods / "two", pod(DISK))
    assert (pods / "two").stat().st_mode & 0o777 == 0o700
    assert volumes.list_pods(pods) == {"one", "two"}
    assert volumes.list_pods(tmp_path / "none") == frozenset()


@needs_root
def test_memory_is_mounted_once_with_its_size_and_goes_with_the_pod(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    try:
        (path,) = volumes.ensure(folder, pod(MEMORY)).values()
        assert path.is_mount()
        assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize == 1 << 20
        (path / "kept").touch()
        volumes.ensure(folder, pod(MEMORY))
        assert (path / "kept").exists()
    finally:
        volumes.discard(folder)
    assert not folder.exists()
    volumes.discard(folder)


@needs_root
def test_what_a_tenancys_pod_has_is_the_tenancys_and_a_servers_or_hosts_files_are_not_touched(tmp_path: Path) -> None:
    host = core.Volume(name="host", host_path=core.HostPathVolume(path=str(tmp_path)))
    claims = {"data": tmp_path / "claims/red/data"}
    found = volumes.ensure(tmp_path / "pod", pod(host, DISK, CLAIM), claims, FIRST, is_exported=True)
    owners = {name: path.stat().st_uid for name, path in found.items()}
    assert owners == {"host": 0, "disk": FIRST, "data": 0}
    volumes.ensure(tmp_path / "pod", pod(CLAIM), claims, FIRST)
    assert claims["data"].stat().st_uid == FIRST
    assert (claims["data"].stat().st_mode & 0o777, claims["data"].parent.parent.stat().st_mode & 0o777) == (
        0o777,
        0o700,
    )


@needs_root
def test_a_secrets_files_are_written_where_nobody_else_looks(tmp_path: Path) -> None:
    files = {"db": (secret.File(path="password", data=b"x", mode=None),)}
    try:
        (path,) = volumes.ensure(tmp_path / "pod", pod(SECRET), owner=FIRST, value_files=files).values()
        assert (path / "password").read_bytes() == b"x"
        assert path.is_mount()
    finally:
        volumes.discard(tmp_path / "pod")


def test_a_claims_folder_that_cannot_be_made_says_who_must_be_able_to(tmp_path: Path) -> None:
    (tmp_path / "red").mkdir()
    (tmp_path / "red/file").touch()
    with pytest.raises(errors.Unavailable, match="cannot be made") as caught:
        volumes.ensure(tmp_path / "pod", pod(CLAIM), {"data": tmp_path / "red/file/data"})
    assert (caught.value.reason, "squashed" in str(caught.value.hint)) == ("VolumeUnusable", True)


def test_a_kernel_that_refuses_memory_names_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        tmpfs.mount(tmp_path / "none", size_bytes=None)
    assert caught.value.reason == "MemoryVolumeFailed"
