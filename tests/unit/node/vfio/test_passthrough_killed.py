"""The agent killed at every step of bind, hold, release and scrub, and a thousand turns: no GPU lost, none shared.

What is left is held against itself by `tests/passedchecker.py`, which imports nothing of Fairlead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import telemetry
from fairlead.node.vfio import binder
from fairlead.node.vfio.executor import Executor
from fairlead.plan.vfio.step import Act
from tests.unit.node.vfio import passednode
from tests.unit.node.vfio.passednode import PassedNode, running
from tests.unit.silicon.vfio import pcitree, sysfskernel

GPU, AUDIO = "0000:0f:00.0", "0000:0f:00.1"
NAME = "x1-2"
HOLD = ("ledger.before-commit", "ledger.after-commit", "vfio.before-let-go", "vfio.after-let-go")
SHOW = ("lease.before-show", "lease.after-show")
RELEASE = ("lease.after-withdraw", "ledger.before-commit", "ledger.after-commit", "vfio.after-take")
SCRUB = (
    *(f"vfio.{act.value}-{when}" for act in Act if act in {Act.CHOOSE_RESET, Act.RESET} for when in ("begun", "done")),
    *(f"vfio.{act.value}-{when}" for act in (Act.ANSWERS, Act.SCRUBBED) for when in ("begun", "done")),
    "lease.after-clean",
)
QUICK = {("hold", "vfio.before-let-go"), ("release", "lease.after-withdraw"), ("release", "vfio.reset-done")}


class DyingKernel(sysfskernel.Kernel):
    """A kernel beside which the agent dies: at its n-th write, before or after it had its effect."""

    left: int
    is_before: bool

    async def write(self, path: Path, text: str, limit_s: float) -> None:
        self.left -= 1
        if self.left == 0 and self.is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        await super().write(path, text, limit_s)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def board(root: Path) -> sysfskernel.Kernel:
    tree = pcitree.Tree(root)
    for name in ("vfio-pci", "nvidia"):
        tree.register_driver(name)
    pcitree.add_gpu(tree, GPU)
    above = "pci0000:0e/0000:0e:01.0"
    tree.add(AUDIO, ids=(0x10DE, 0x22BA), pci_class=0x040300, above=above, driver="nvidia", group=15)
    return sysfskernel.Kernel(tree)


def executor(kernel: sysfskernel.Kernel) -> Executor:
    return Executor(kernel.tree.root, kernel.find_users, dev_root=kernel.tree.root, open_writer=kernel.open_writer)


def state(kernel: sysfskernel.Kernel) -> dict[str, tuple[str, str]]:
    return {one: (kernel.driver(one), kernel.override(one)) for one in (GPU, AUDIO)}


def killed(kernel: sysfskernel.Kernel, verb: str, write: int, *, is_before: bool) -> bool:
    """Have a process bind or release that dies at a write; returns whether it came so far."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            dying = DyingKernel(kernel.tree)
            dying.left, dying.is_before = write, is_before
            made = executor(dying)
            asyncio.run(made.bind([GPU]) if verb == "bind" else made.release([GPU]))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize(
    ("verb", "is_before"),
    [
        pytest.param("bind", False, id="bind after"),
        pytest.param("bind", True, id="bind before", marks=pytest.mark.slow),
        pytest.param("release", False, id="release after", marks=pytest.mark.slow),
        pytest.param("release", True, id="release before", marks=pytest.mark.slow),
    ],
)
def test_a_binding_killed_at_any_write_is_finished_or_taken_back_by_the_next(
    tmp_path: Path, verb: str, is_before: bool
) -> None:
    died = 0
    for write in range(1, 12):
        kernel = board(tmp_path / str(write))
        native = state(kernel)
        bound = dict.fromkeys(native, ("vfio-pci", "vfio-pci"))
        if verb == "release":
            asyncio.run(executor(kernel).bind([GPU]))
        if not killed(kernel, verb, write, is_before=is_before):
            assert state(kernel) == (bound if verb == "bind" else native)
            break
        died += 1
        # whichever is asked for next: the one that was begun, or the other
        for again, wanted in (("bind", bound), ("release", native), ("bind", bound)):
            made = executor(kernel)
            outcomes = asyncio.run(made.bind([GPU]) if again == "bind" else made.release([GPU]))
            assert all(one.is_good for one in outcomes), outcomes
            now = state(kernel)
            assert {one: driver for one, (driver, _) in now.items()} == {one: found[0] for one, found in wanted.items()}
            # a function that a release had begun with is bound and not named; no other driver is ever named
            assert all(override in {driver, "(null)"} for driver, override in now.values()), (write, again, now)
    assert died == 6


BIND = [
    f"vfio.{act.value}-{when}"
    for act in (Act.OVERRIDE, Act.UNBIND, Act.PROBE, Act.VERIFY)
    for when in ("begun", "done")
]


@pytest.mark.parametrize("point", BIND)
def test_an_agent_killed_at_a_point_of_bind_is_followed_by_one_that_finishes(tmp_path: Path, point: str) -> None:
    kernel = board(tmp_path)
    native = state(kernel)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            telemetry.arm_crash_point(point)
            asyncio.run(bind_once(kernel))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    found = state(kernel)
    if point == "vfio.unbind-done":  # of the first that goes: it has no driver, and none but VFIO's may have it
        assert found == {**dict.fromkeys(native, ("nvidia", "vfio-pci")), AUDIO: ("", "vfio-pci")}
    assert all(override in {"vfio-pci", "(null)"} for _, override in found.values())

    asyncio.run(bind_once(kernel))
    assert state(kernel) == dict.fromkeys(native, ("vfio-pci", "vfio-pci"))
    (outcome,) = asyncio.run(executor(kernel).release([GPU]))
    assert outcome.is_good
    assert state(kernel) == native


async def bind_once(kernel: sysfskernel.Kernel) -> None:
    """Be an agent that binds its GPUs, until they are bound."""
    if kernel.driver(GPU) == "vfio-pci":
        return
    bound = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(binder.Binder(executor(kernel), binder.BIND, bound.set).run(None))
        await bound.wait()
        running.cancel()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[PassedNode]:
    with running(tmp_path) as made:
        yield made


def die(node: PassedNode, point: str, when: str) -> None:
    """Have the agent die at a point, while it gives a GPU away or takes it back; its tenant has used it before that."""
    if when == "release":
        assert node.ask("hold", NAME) == "ok"
        node.report(NAME, "first")
        assert node.start(NAME, "first")
        node.until_named(NAME)
        node.arm(point)
        node.stop(NAME)
        node.report(NAME, "")
        node.ask("poke")
        assert node.has_died(20), point
    else:
        node.arm(point)
        assert node.ask("hold", NAME) is None
    assert node.end() == signal.SIGKILL


STEPS = [
    *(("hold", point) for point in (*HOLD, *SHOW)),
    *(("release", point) for point in (*RELEASE, *SCRUB)),
]
MARKED = [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow, id=" ".join(one)) for one in STEPS]


@pytest.mark.parametrize(("when", "point"), MARKED)
def test_after_a_kill_the_kubelet_that_asks_again_gets_the_gpu_clean(node: PassedNode, when: str, point: str) -> None:
    die(node, point, when)
    node.begin()
    until = time.monotonic() + 20
    while (said := node.ask("hold", NAME)) != "ok":  # refused while it is reset, as a pod would be placed again
        assert time.monotonic() < until, said
        time.sleep(0.02)
    node.report(NAME, "second")
    assert node.start(NAME, "second")
    node.until({NAME: "Held", "x1-1": "Free", "x1-3": "Free"})
    node.stop(NAME)
    node.report(NAME, "")
    node.until_free()
    assert node.violations == []


@pytest.mark.parametrize(("when", "point"), MARKED)
def test_after_a_kill_a_gpu_that_nobody_asks_for_again_comes_free(node: PassedNode, when: str, point: str) -> None:
    die(node, point, when)
    node.skew_s = 130  # an answer of an Allocate counts as lost by then
    node.begin()
    node.until_free()
    assert node.violations == []


def test_every_point_of_passthrough_is_killed_at() -> None:
    named = {point for point in passednode.points() if "{" not in point}
    assert named == {*HOLD, *SHOW, *RELEASE, *SCRUB} - {one for one in SCRUB if one.startswith("vfio.")}
    assert {point for point in passednode.points() if "{" in point} == {
        "vfio.{step.act.value}-begun",
        "vfio.{step.act.value}-done",
    }


def test_a_machine_that_outlives_pod_and_agent_is_found_and_nobody_joins_it(node: PassedNode) -> None:
    assert node.ask("hold", NAME) == "ok"
    node.report(NAME, "first")
    assert node.start(NAME, "first")
    node.until_named(NAME)
    assert node.end() == signal.SIGKILL
    node.report(NAME, "")
    node.begin()
    node.until({NAME: "Releasing", "x1-1": "Free", "x1-3": "Free"})
    assert node.ask("hold", NAME) != "ok"
    node.stop(NAME)
    node.until_free()
    assert node.violations == []


class Walk:
    """Tenants that come and go, machines that linger, strangers that open nodes, and an agent that dies anywhere."""

    def __init__(self, node: PassedNode, seed: int) -> None:
        self.node, self.dice = node, random.Random(seed)
        self.names = [f"x1-{module}" for module in passednode.MODULES.values()]
        self.pods: dict[str, str] = {}
        """Pod by device, of pods that the kubelet has."""
        self.given = self.deaths = self.machines = 0

    def turn(self) -> None:
        steps = {
            self.give: 34,
            self.start: 24,
            self.stop: 14,
            self.forget: 14,
            self.open: 8,
            self.shut: 8,
            self.arm: 6,
            self.kill: 2,
        }
        self.dice.choices(list(steps), list(steps.values()))[0]()
        if self.node.has_died(0.001):
            assert self.node.end() == signal.SIGKILL
            self.deaths += 1
            self.node.begin()

    def give(self) -> None:
        name = self.dice.choice(self.names)
        if name in self.pods:
            return
        pod = f"pod-{self.given}-{self.dice.randrange(1000)}"
        if self.node.ask("hold", name) == "ok":
            self.given += 1
            self.pods[name] = pod
            self.node.report(name, pod)

    def start(self) -> None:
        for name in [name for name in self.pods if name not in self.node.machines][:1]:
            self.machines += self.node.start(name, self.pods[name])

    def stop(self) -> None:
        for name in list(self.node.machines)[:1]:
            self.node.stop(name)

    def forget(self) -> None:
        """The kubelet forgets a pod; its machine may run on."""
        if known := sorted(filter(self.node.is_named, self.pods)):
            name = self.dice.choice(known)
            del self.pods[name]
            self.node.report(name, "")

    def open(self) -> None:
        """Open a node by its path, as a program of an administrator's: only where neither agent nor machine has it."""
        name = self.dice.choice(self.names)
        with contextlib.suppress(OSError):
            handle = self.node.take(passednode.address_of(name), "machine of a stranger")
            if name in self.node.strangers or name in self.node.machines:
                self.node.note(f"two have the node of {name}")
            self.node.strangers[name] = handle

    def shut(self) -> None:
        for name in list(self.node.strangers)[:1]:
            os.close(self.node.strangers.pop(name))

    def arm(self) -> None:
        point = self.dice.choice((*HOLD, *SHOW, *RELEASE, *SCRUB))
        if self.node.ask("arm", point) == "ok":
            self.node.ask("poke")

    def kill(self) -> None:
        """Kill the agent and let others open what it had, before the next one begins."""
        self.node.end()
        self.deaths += 1
        self.open()
        self.node.begin()

    def settle(self) -> None:
        """Wait until all that is said is true."""
        if self.node.ask("arm", "none") is None:
            assert self.node.end() == signal.SIGKILL
            self.node.begin()
        while self.node.strangers:
            self.shut()
        wanted = {name: "Held" for name in self.pods}
        self.node.until(wanted)


@pytest.mark.parametrize(
    "turns",
    [pytest.param(40, id="40"), pytest.param(1000, id="1000", marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_turns_of_tenants_strangers_and_kills_leave_nothing_that_contradicts_itself(
    node: PassedNode, turns: int
) -> None:
    walk = Walk(node, seed=turns)
    for number in range(1, turns + 1):
        walk.turn()
        if not number % 50:
            walk.settle()
    walk.settle()
    for name in [*walk.pods]:
        node.until_named(name)
        node.report(name, "")
    walk.pods.clear()
    for name in [*node.machines]:
        node.stop(name)
    node.until_free()
    assert node.violations == []
    assert walk.given > turns // 20
    if turns >= 1000:
        assert walk.deaths > 10
        assert walk.machines > 40
