"""What may be held as a VFIO node, on this machine's own files; exclusion itself is shown on the HGX machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel import vfionode


def _descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_a_character_device_is_held_until_it_is_closed() -> None:
    before = _descriptors()
    hold = vfionode.hold_group(Path("/dev/null"))
    hold.close()
    hold.close()
    assert _descriptors() == before


def test_a_node_that_is_not_there_is_gone(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound) as caught:
        vfionode.hold_group(tmp_path / "12")
    assert caught.value.reason == vfionode.GONE


@pytest.mark.parametrize("kind", ["file", "pipe", "link", "folder"])
def test_what_is_no_character_device_proves_nothing_and_holds_nobody_up(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "12"
    match kind:
        case "file":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/null")
        case _:
            path.mkdir()
    with pytest.raises(errors.Unavailable) as caught:
        vfionode.hold_group(path)
    assert caught.value.reason == vfionode.FAILED


def test_a_device_that_cannot_be_bound_to_an_iommufd_leaves_nothing_open() -> None:
    before = _descriptors()
    with pytest.raises(errors.FairleadError):
        vfionode.hold_devices([Path("/dev/zero")], Path("/dev/null"))
    assert _descriptors() == before


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (errno.EBUSY, errors.Conflict, vfionode.IN_USE),
        (errno.EINVAL, errors.Conflict, vfionode.IN_USE),
        (errno.EPERM, errors.Unavailable, vfionode.DENIED),
        (errno.EACCES, errors.Unavailable, vfionode.DENIED),
        (errno.ENODEV, errors.NotFound, vfionode.GONE),
        (errno.EIO, errors.Unavailable, vfionode.FAILED),
    ],
)
def test_what_the_kernel_answers_says_who_must_act(number: int, kind: type[errors.FairleadError], reason: str) -> None:
    found = vfionode._translated(Path("/dev/vfio/12"), OSError(number, os.strerror(number)))
    assert (type(found), found.reason) == (kind, reason)
    assert "/dev/vfio/12" in found.message
