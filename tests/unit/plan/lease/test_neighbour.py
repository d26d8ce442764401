"""What a program that Fairlead did not start does with a GPU, whether it keeps it, how it is named, who may end it."""

from __future__ import annotations

import pytest

from fairlead.model.neighbour import GPUProcess, Neighbour, Use
from fairlead.plan.lease import neighbour

CTL, UVM, MODESET = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"


@pytest.mark.parametrize(
    ("name", "uid", "nodes", "told", "elsewhere", "use"),
    [
        ("python", 1000, (CTL, UVM), GPUProcess(pid=1), False, Use.COMPUTE),
        ("python", 1000, (CTL, UVM), None, False, Use.COMPUTE),  # between two contexts, or the driver does not answer
        ("python", 1000, (CTL, UVM), None, True, Use.MONITOR),  # CUDA opens every GPU, and works on another one
        ("python", 1000, (), None, False, Use.OPEN),
        ("nvidia-smi", 0, (CTL,), None, False, Use.MONITOR),
        ("game", 1000, (CTL,), GPUProcess(pid=1, is_graphics=True), False, Use.GRAPHICS),
        ("Xorg", 0, (), None, False, Use.GRAPHICS),
        ("mutter", 1000, (CTL, MODESET), None, False, Use.GRAPHICS),
        ("nvidia-persiste", 143, (CTL, MODESET), None, False, Use.SERVICE),
        ("nvidia-persiste", 1000, (), None, False, Use.OPEN),  # a person's program may call itself so
        ("nvidia-persiste", 0, (CTL, UVM), GPUProcess(pid=1), False, Use.COMPUTE),
        ("python", 1000, ("/dev/kfd",), None, False, Use.COMPUTE),
    ],
)
def test_use_follows_from_the_driver_and_from_what_is_open(
    name: str, uid: int, nodes: tuple[str, ...], told: GPUProcess | None, elsewhere: bool, use: Use
) -> None:
    opened = neighbour.Opened(name=name, uid=uid, nodes=nodes)
    assert neighbour.use_of(opened, told, is_told_elsewhere=elsewhere) is use


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (neighbour.REFUSE, {Use.COMPUTE, Use.OPEN, Use.UNREAD}),
        (neighbour.REFUSE_ALL, {Use.COMPUTE, Use.OPEN, Use.UNREAD, Use.GRAPHICS, Use.MONITOR}),
        (neighbour.SHARE, set()),
        (neighbour.IGNORE, set()),
    ],
)
def test_the_policy_says_which_uses_keep_a_gpu(policy: str, kept: set[Use]) -> None:
    found = neighbour.judge(policy, [Neighbour(pid=2, name="a", use=use) for use in Use])
    assert {one.use for one in found if one.keeps} == kept


def test_a_neighbour_is_named_with_what_is_known_of_it() -> None:
    at = 1_700_000_000.0
    one = Neighbour(pid=42, name="python", user="ann", container="docker container trainer", since=at)
    assert neighbour.message([one], at + 60).startswith("used by python (pid 42, user ann, docker container trainer, ")
    assert "since 2023-11-1" in neighbour.message([one], at + 86400 * 3)
    assert neighbour.message([one], at).endswith("), not started by Fairlead")
    assert neighbour.who(Neighbour(pid=7, name="x", user="uid 4000"), at) == "x (pid 7, uid 4000)"
    assert neighbour.who(Neighbour(pid=7, name=""), at) == "a program that cannot be read (pid 7)"
    assert " and 2 more, not started" in neighbour.message([one] * 5, at)


@pytest.mark.parametrize(
    ("one", "may"),
    [
        (Neighbour(pid=42, name="python", started="9", use=Use.COMPUTE, keeps=True), True),
        (Neighbour(pid=42, name="python", started="9", use=Use.OPEN), True),
        (Neighbour(pid=42, name="Xorg", started="9", use=Use.GRAPHICS), False),
        (Neighbour(pid=42, name="Xorg", started="9", use=Use.GRAPHICS, keeps=True), True),
        (Neighbour(pid=1, name="init", started="9", use=Use.COMPUTE, keeps=True), False),
        (Neighbour(pid=42, name="", use=Use.UNREAD, keeps=True), False),
        (Neighbour(pid=42, name="nvidia-persiste", started="9", use=Use.SERVICE), False),
        (Neighbour(pid=42, name="fairlead", started="9", use=Use.OPEN, keeps=True), False),
        (Neighbour(pid=42, name="python", started="9", unit="fairlead.service", use=Use.OPEN, keeps=True), False),
    ],
)
def test_who_may_be_ended(one: Neighbour, may: bool) -> None:
    assert (neighbour.why_not_ended(one) == "") is may
