"""The checkpoint: a kill, a full disk, damage and a newer version each leave what can be understood."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead import errors
from fairlead.node.kubelet.devices.checkpoint import NAME, Checkpoint, Grant


def _grant(container: str = "main", *ids: str, uid: str = "uid-1", response: bytes = b"\x0a\xff") -> Grant:
    return Grant(
        pod_uid=uid, container=container, resource="example.com/gpu", device_ids=ids or ("g0",), response=response
    )


def _by_container(*grants: Grant) -> dict[tuple[str, str, str], Grant]:
    return {(one.pod_uid, one.container, one.resource): one for one in grants}


def test_no_file_means_no_grants(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).load() == ()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grants=st.lists(
        st.builds(
            Grant,
            pod_uid=st.text(min_size=1),
            container=st.text(min_size=1),
            resource=st.text(min_size=1),
            device_ids=st.lists(st.text()).map(tuple),
            response=st.binary(),
        ),
        unique_by=lambda one: (one.pod_uid, one.container, one.resource),
        max_size=4,
    )
)
def test_what_is_saved_is_loaded_by_whoever_comes_next(tmp_path: Path, grants: list[Grant]) -> None:
    Checkpoint(tmp_path).save(_by_container(*grants))
    loaded = Checkpoint(tmp_path).load()
    assert loaded is not None
    assert _by_container(*loaded) == _by_container(*grants)


def test_only_root_may_read_it(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(_by_container(_grant()))
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


@pytest.fixture(params=["truncated", "flipped", "foreign", "latin-1", "empty", "checksum"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bytes]:
    Checkpoint(tmp_path).save(_by_container(_grant(), _grant("side", "g1")))
    whole = (tmp_path / NAME).read_bytes()
    data = {
        "truncated": whole[: len(whole) // 2],
        "flipped": whole.replace(b"g0", b"g7"),
        "foreign": b'{"PodDeviceEntries": null}',
        "latin-1": whole.replace(b"g0", b"\xff0"),
        "empty": b"",
        "checksum": whole.replace(b'"checksum":"', b'"checksum":"0'),
    }[request.param]
    (tmp_path / NAME).write_bytes(data)
    return tmp_path, data


def test_a_damaged_file_is_set_aside_whole_and_must_be_made_anew(damaged: tuple[Path, bytes]) -> None:
    folder, data = damaged
    assert Checkpoint(folder).load() is None
    assert (folder / f"{NAME}.damaged-1").read_bytes() == data
    assert Checkpoint(folder).load() == ()


def test_a_file_from_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text = '{"version": 2, "whatever": ["a", "newer", "one", "needs"]}'
    (tmp_path / NAME).write_text(text)
    with pytest.raises(errors.Unavailable, match="has version 2, this program reads up to 1") as caught:
        Checkpoint(tmp_path).load()
    assert caught.value.reason == "StateFromNewerVersion"
    assert caught.value.hint
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(NAME, text)]


def test_a_file_that_cannot_be_read_is_neither_lost_nor_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(errors.Unavailable, match="cannot read checkpoint") as caught:
        Checkpoint(tmp_path).load()
    assert caught.value.reason == "CheckpointUnreadable"
    assert (tmp_path / NAME).is_dir()


def test_a_full_disk_leaves_the_old_checkpoint_on_it(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    try:
        Checkpoint(tmp_path).save(_by_container(_grant()))
        with pytest.raises(errors.Unavailable) as caught:
            Checkpoint(tmp_path).save(_by_container(_grant(response=bytes(100_000))))
        assert caught.value.reason == "StateWriteFailed"
        assert Checkpoint(tmp_path).load() == (_grant(),)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_another_process_reads_the_checkpoint_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save(_by_container(_grant()))
    assert Checkpoint(tmp_path).peek() == (_grant(),)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "CheckpointUnreadable"),
        (lambda path: path.write_text("{"), "CheckpointUnreadable"),
        (lambda path: path.chmod(0o620), "CheckpointUntrusted"),
        (lambda path: path.parent.chmod(0o777), "CheckpointUntrusted"),
    ],
)
def test_a_checkpoint_that_others_could_have_written_says_nothing(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    Checkpoint(tmp_path).save(_by_container(_grant()))
    damage(tmp_path / NAME)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(errors.Unavailable) as caught:
        Checkpoint(tmp_path).peek()
    assert caught.value.reason == reason
    assert sorted(tmp_path.iterdir()) == before
