"""The record that a container's start was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.engine.podman import startrecord


def test_a_start_is_noted_until_podman_refused_it(tmp_path: Path) -> None:
    assert not startrecord.is_noted(tmp_path)
    startrecord.note(tmp_path)
    startrecord.note(tmp_path)
    assert startrecord.is_noted(tmp_path)
    startrecord.forget(tmp_path)
    startrecord.forget(tmp_path)
    assert not startrecord.is_noted(tmp_path)


def test_a_start_that_cannot_be_noted_is_not_asked_for(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"cannot record in .*gone"):
        startrecord.note(tmp_path / "gone")


def test_a_log_is_marked_once_before_the_first_start(tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    log.touch()
    startrecord.note(tmp_path)
    log.unlink()
    log.touch()  # as conmon begins it anew
    startrecord.note(tmp_path)

    assert startrecord.is_log_marked(tmp_path)
    assert not os.listxattr(log)
