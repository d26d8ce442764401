"""The shim before real runc and crun, holding what a container asks for to what the kubelet gave it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import oci_bundle
import pytest

from tests import kubeletcheckpoint

ENXIO = "No such device or address"
LOOK = "for i in 0 1 2 3; do cat /dev/nvidia$i; done 2>&1; true"


@pytest.fixture(params=["runc", "crun"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[oci_bundle.Lab]:
    yield from oci_bundle.make_lab(tmp_path, request.param)


def name(lab: oci_bundle.Lab, what: str) -> str:
    return f"fl-{os.getpid()}-{lab.runtime}-{what}"


MINE, THEIRS = "5b0e-mine", "77aa-theirs"


def see(lab: oci_bundle.Lab, what: str, visible: str, pod: str, **more: object) -> tuple[int, set[str], str]:
    """Run a container of a pod; returns its exit code, the GPUs in it, and what the shim told."""
    marks = kubeletcheckpoint.identity(pod)
    env = [f"NVIDIA_VISIBLE_DEVICES={visible}"]
    bundle = lab.bundle("sh", "-c", LOOK, name=what, env=env, annotations=marks, **more)
    done = lab.run(bundle, name(lab, what))
    seen = {f"nvidia{i}" for i, line in enumerate(done.stdout.splitlines()[:4]) if line.endswith(ENXIO)}
    return done.returncode, seen, done.stderr


def test_environment_is_honoured_where_the_kubelet_gave_it_and_nowhere_else(lab: oci_bundle.Lab) -> None:
    lab.spec()
    checkpoint = lab.folder / "kubelet_internal_checkpoint"
    lab.policy(imageRequests="ignore", allocations=str(checkpoint))
    given = (kubeletcheckpoint.by_environment(MINE, "0", "2"), kubeletcheckpoint.by_environment(THEIRS, "1"))
    kubeletcheckpoint.write(checkpoint, *given)
    assert see(lab, "own", "0,2", MINE) == (0, {"nvidia0", "nvidia2"}, "")
    for turn, forged in enumerate(("1", "0,1", "0,2,3", "all")):
        code, seen, told = see(lab, f"forged{turn}", forged, MINE)
        assert (code, seen) == (0, set())
        assert "was not allocated to this container" in told
    # Given anew, it is the new holder's: what the old one knew is worth nothing.
    kubeletcheckpoint.write(checkpoint, kubeletcheckpoint.by_environment(THEIRS, "0", "2"))
    assert see(lab, "stale", "0,2", MINE)[1] == set()
    assert see(lab, "anew", "0,2", THEIRS)[1] == {"nvidia0", "nvidia2"}


def test_an_operator_who_honours_images_still_gives_nobody_another_pods_gpu(lab: oci_bundle.Lab) -> None:
    lab.spec()
    checkpoint = lab.folder / "kubelet_internal_checkpoint"
    lab.policy(allocations=str(checkpoint))
    kubeletcheckpoint.write(
        checkpoint, kubeletcheckpoint.Given(THEIRS, ["GPU-1"], envs={"NVIDIA_VISIBLE_DEVICES": "1"})
    )
    code, seen, told = see(lab, "all", "all", MINE)
    assert (code, seen) == (3, set())
    assert "all is, or may be, what another pod was given" in told
    lab.policy(allocations=str(checkpoint), checkAllocations=False)
    assert see(lab, "unchecked", "all", MINE)[1] == {f"nvidia{i}" for i in range(4)}


def test_a_checkpoint_that_others_can_write_is_not_believed(lab: oci_bundle.Lab) -> None:
    lab.spec()
    checkpoint = lab.folder / "kubelet_internal_checkpoint"
    lab.policy(imageRequests="ignore", allocations=str(checkpoint))
    kubeletcheckpoint.write(checkpoint, kubeletcheckpoint.by_environment(MINE, "0"))
    assert see(lab, "closed", "0", MINE)[1] == {"nvidia0"}
    checkpoint.chmod(0o666)
    code, seen, told = see(lab, "open", "0", MINE)
    assert (code, seen) == (0, set())
    assert "can be written by others than root" in told
