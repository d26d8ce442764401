"""Podman's listings as the port's values."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.podman import json as podman_json

ZERO = -62135596800  # Go's zero time in unix seconds


def row(**more: object) -> podman_json.Container:
    return podman_json.Container(**{"id": "abc", "names": ["web"], **more})  # type: ignore[arg-type]


def test_a_held_container_has_a_pid_and_no_times() -> None:
    state = podman_json.container_state(
        row(state="initialized", pid=12, started_at=ZERO, exited_at=ZERO), oom_killed=False
    )
    assert (state.phase, state.pid, state.exit_code) == (port.ContainerPhase.CREATED, 12, None)
    assert (state.started_at, state.finished_at) == (None, None)


def test_a_container_we_died_over_is_created_without_a_pid() -> None:
    state = podman_json.container_state(row(state="created"), oom_killed=False)
    assert (state.phase, state.pid) == (port.ContainerPhase.CREATED, None)


def test_an_ended_container_has_code_and_times() -> None:
    state = podman_json.container_state(
        row(state="exited", exit_code=137, started_at=10, exited_at=20), oom_killed=True
    )
    assert (state.phase, state.pid, state.exit_code) == (port.ContainerPhase.EXITED, None, 137)
    assert (state.started_at, state.finished_at, state.oom_killed) == (10.0, 20.0, True)


def test_a_created_container_that_was_started_has_ended_and_podman_lost_its_code() -> None:
    state = podman_json.container_state(row(state="created"), oom_killed=False, has_run=True)
    assert (state.phase, state.pid, state.exit_code) == (port.ContainerPhase.EXITED, None, 137)


def test_an_exit_code_that_podman_does_not_know_is_not_a_code() -> None:
    state = podman_json.container_state(row(state="exited", exit_code=-1), oom_killed=False)
    assert state.exit_code == 137


@pytest.mark.parametrize(("pid", "phase"), [(7, port.ContainerPhase.RUNNING), (0, port.ContainerPhase.EXITED)])
def test_a_state_podman_adds_later_counts_by_its_process(pid: int, phase: port.ContainerPhase) -> None:
    assert row(state="hibernating", pid=pid).phase is phase


def test_absent_and_new_fields_do_not_fail_a_listing() -> None:
    found = podman_json.decode(b'[{"Id": "a", "Labels": null, "New": 1}]', list[podman_json.Container], what="list")
    assert podman_json.container_state(found[0], oom_killed=False).name == "a"


def test_an_image_listed_once_per_name_is_one_image() -> None:
    rows = [podman_json.ImageRow(id="a", names=["x:1"], size=5), podman_json.ImageRow(id="a", names=["y:1"], size=5)]
    assert [image.names for image in podman_json.images(rows)] == [("x:1", "y:1")]


def test_output_that_is_no_json_is_a_protocol_error() -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        podman_json.decode(b"Error", list[podman_json.Container], what="list")
    assert caught.value.reason == "PodmanOutputInvalid"
