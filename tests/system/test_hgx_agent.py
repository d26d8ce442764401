"""The agent on an HGX node: GPUs go to tenants' machines by the kubelet's protocol, and come back reset or not at all.

One boot and one power cut. Everything but the kubelet's pods is real in the node: VFIO, groups, iommufd, a tenant's
QEMU with KVM, and a board that counts its resets and keeps what a tenant wrote.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hgx import image, layout, tenant
from hgx.function import Fault, Reset
from hgx.node import Node, NodeError
from hgx.shown import hgx_node, power_on

from tests import passedchecker
from tests.contract.test_published_daemonset import PUBLISHED, VARIABLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RESOURCE = "nvidia.com/pgpu-x1"
"""Of boards whose model no list of PCI ids in the node knows."""
NAMES = ("gpu0", "gpu1", "gpu4")
"""Modules 5, 7 and 1."""
WORD = 0xFEEDFACE
LIMIT_S = 240
OWN = (*(Path(__file__).parent / "hgx" / name for name in ("kubelet.py", "openers.py")), Path(passedchecker.__file__))
PRELOADED = ("fairlead.cli.process.agent", "fairlead.node.agent", "kubelet", "passedchecker")
"""Imported once in the node: each start of the agent would else take seconds for it."""
_AGENT = ("--state-folder", "/state/fairlead", "--node-vfio", "bound", "--node-engine", "containerd://2.2.1")


class World:
    """A node whose agent and kubelet a test starts and ends."""

    def __init__(self, node: Node, names: Sequence[str] = NAMES) -> None:
        self.node, self.names = node, tuple(names)
        self.group: dict[str, str] = {}
        self.agent = 0

    def begin(self) -> None:
        """Bind the GPUs, and start kubelet and agent, as after a boot."""
        done = self.node.fairlead("vfio", "bind", *(self.node.address[name] for name in self.names))
        assert done.code == 0, done
        for name in self.names:
            self.group[name] = self.node.call("facts", "nodes", self.node.address[name])["group"]
        self.node.do("preload", PRELOADED)
        self.node.call("kubelet", "start")
        self.start_agent()

    def start_agent(self, *, dying_at: str = "") -> None:
        self.agent = self.node.spawn_fairlead("agent", "agent", *_AGENT, env={"FAIRLEAD_DEBUG_CRASH_AT": dying_at})

    def restart_agent(self, *, dying_at: str = "") -> None:
        """Kill the agent, and start one that may die at a crash point."""
        assert self.node.kill(self.agent) == -9
        self.until(0)  # else what the kubelet has of the killed one is taken for the new one's
        self.start_agent(dying_at=dying_at)
        self.until(len(self.names))

    def said_by_board(self) -> dict[str, dict[str, Any]]:
        """Return what the hardware says of each GPU that is passed through, by address."""
        board = self.node.board
        return {
            self.node.address[name]: {
                "is_clean": board[name].is_clean(),
                "is_used": bool(board.translated(name)),
                "bus": board[name].resets(Reset.BUS),
                "flr": board[name].resets(Reset.FLR),
            }
            for name in self.names
        }

    def agree(self) -> None:
        """Wait until ledger, specs, sysfs, open nodes and board say the same, by a checker that knows none of ours."""
        only = [self.node.address[name] for name in self.names]
        until, found = time.monotonic() + LIMIT_S, ["not looked at"]
        while found:
            assert time.monotonic() < until, (found, self.node.log("agent.err")[-2000:])
            found = self.node.call("passedchecker", "find_in_node", self.agent, only, self.said_by_board())

    def until(self, allocatable: int) -> None:
        """Wait until the kubelet can give so many away."""
        until, seen = time.monotonic() + LIMIT_S, None
        while seen != [len(self.names), allocatable]:
            assert time.monotonic() < until, (seen, self.node.log("agent.err")[-3000:])
            seen = self.node.call("kubelet", "capacity").get(RESOURCE)
            time.sleep(0.3)

    def admit(self, pod: str, *, again_s: float = 0.0) -> str:
        """Admit a pod; returns the name of the GPU that it has.

        Args: again_s: so long it is tried again while its GPU is reset, as a controller makes a new pod of one refused.
        """
        until = time.monotonic() + again_s
        while True:
            try:
                device, cdi = self.node.call("kubelet", "admit", pod, RESOURCE)
                break
            except NodeError as error:
                if "not verified since its last tenant" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(1)
        assert cdi == f"{RESOURCE}={device}"
        return next(name for name in self.names if self.module(name) == int(device.removeprefix("x1-")))

    def module(self, name: str) -> int:
        return {"gpu0": 5, "gpu1": 7, "gpu4": 1}[name]

    def end(self, *pods: str) -> None:
        """End pods whose machines are gone, and wait until their GPUs were reset and are offered again."""
        for pod in pods:
            self.until_named(pod)
        before = sum(self.resets().values())
        for pod in pods:
            self.node.call("kubelet", "end", pod)
        until = time.monotonic() + LIMIT_S
        while sum(self.resets().values()) < before + len(pods):
            assert time.monotonic() < until, self.node.log("agent.err")[-3000:]
            time.sleep(0.2)
        self.until(len(self.names))

    def stranger(self, name: str) -> str:
        """Return how a program that knows a GPU's node is answered: "" is in."""
        return str(self.node.call("facts", "open_twice", self.group[name])[0])

    def key(self, name: str) -> str:
        """Return the ledger's key of a GPU."""
        serial = f"{self.node.board[name].table.serial:016x}"
        (found,) = (one for one in self.rows() if serial in passedchecker._digits(one))
        return found

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the ledger's rows, read by SQL."""
        found: dict[str, dict[str, Any]] = self.node.call("passedchecker", "rows_in_node")
        return found

    def until_named(self, pod: str) -> None:
        """Wait until the ledger names a pod: one that ends before counts as an Allocate whose answer was lost."""
        until = time.monotonic() + LIMIT_S
        while not any(claim.get("pod") == pod for row in self.rows().values() for claim in row.get("claims", ())):
            assert time.monotonic() < until, (self.rows(), self.node.log("agent.err")[-2000:])

    def published(self) -> dict[str, list[str]]:
        """Return the nodes of each device that CDI specs show."""
        found: dict[str, list[str]] = {}
        for text in self.node.output("cat /var/run/cdi/*.json 2>/dev/null || true").split("\n}\n"):
            if text.strip():
                document = json.loads(text + "}")
                found |= {
                    f"{document['kind']}={one['name']}": [each["path"] for each in one["containerEdits"]["deviceNodes"]]
                    for one in document["devices"]
                }
        return found

    def resets(self) -> dict[str, int]:
        """Return how often each GPU was reset, by itself or by its bus."""
        boards = {name: self.node.board[name] for name in self.names}
        return {name: board.resets(Reset.FLR) + board.resets(Reset.BUS) for name, board in boards.items()}

    def machine(self, log: str, name: str) -> int:
        """Start a tenant's machine with a GPU, which leaves a word in its memory and stays; returns the pid."""
        line = tenant.line([self.node.address[name]], with_iommufd=False, leave=WORD, is_staying=True)
        pid = self.node.spawn(log, f"{line} 2>&1")
        self.node.wait_for_log(log, "TENANT done", limit_s=240)
        return pid


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hgx_node(layout.HGX_H100, packages=image.AGENT, modules=OWN, tenants=1) as node:
        made = World(node)
        made.begin()
        yield made


def test_free_gpus_were_reset_are_in_no_spec_and_open_to_nobody(world: World) -> None:
    world.until(3)
    assert {world.stranger(name) for name in NAMES} == {"EBUSY"}
    assert world.published() == {}
    assert all(count > 0 for count in world.resets().values())


def test_a_machine_that_outlives_its_pod_is_neither_reset_nor_followed_by_another_tenant(world: World) -> None:
    world.until(3)
    name = world.admit("first")
    assert world.published() == {f"{RESOURCE}=x1-{world.module(name)}": ["/dev/vfio/vfio", world.group[name]]}
    pid = world.machine("first", name)
    seen = tenant.reports(world.node.log("first"))
    assert [(gpu.module, gpu.found) for gpu in seen] == [(world.module(name), 0)]
    assert {world.stranger(other) for other in NAMES} == {"EBUSY"}, "the others are in the agent's hands"
    before = world.resets()
    world.node.call("kubelet", "end", "first")  # by force: its machine runs on
    world.until(2)
    assert world.published() == {}
    others = [world.admit(pod) for pod in ("second", "third")]
    assert name not in others
    with pytest.raises(NodeError):
        world.admit("fourth")
    assert world.resets()[name] == before[name]
    assert world.node.board[name].memory(0, 4) == WORD.to_bytes(4, "little")
    assert world.node.kill(pid) == -9
    world.until(3)
    assert world.resets()[name] > before[name]
    assert world.node.board[name].is_clean()
    assert world.admit("fourth") == name
    world.end("second", "third", "fourth")


def test_an_agent_that_is_killed_beside_a_running_machine_finds_it_and_touches_nothing(world: World) -> None:
    world.until(3)
    name = world.admit("long")
    pid = world.machine("long", name)
    before = world.resets()
    assert world.node.kill(world.agent) == -9
    world.start_agent()
    world.until(3)
    assert world.resets() == before
    assert {world.stranger(other) for other in NAMES} == {"EBUSY"}
    assert list(world.published()) == [f"{RESOURCE}=x1-{world.module(name)}"]
    assert world.node.wait(pid, limit_s=0) is None
    assert world.node.kill(pid) == -9
    world.end("long")
    assert world.node.board[name].is_clean()


def test_a_gpu_whose_memory_is_never_scrubbed_is_given_to_nobody(world: World) -> None:
    world.until(3)
    name = world.admit("dirty")
    world.node.board[name].fail(Fault.NEVER_SCRUBBED)
    before = world.resets()[name]
    time.sleep(3)
    world.node.call("kubelet", "end", "dirty")
    world.until(2)
    time.sleep(8)  # the flag is waited for, for five seconds
    world.until(2)
    assert world.resets()[name] > before
    world.node.board[name].mend()
    world.until(3)


def test_a_program_that_opens_a_gpu_while_no_agent_runs_is_not_joined_by_a_tenant(world: World) -> None:
    world.until(3)
    assert world.node.kill(world.agent) == -9
    holder = world.node.spawn("stranger", f"exec sleep 600 0<>{world.group['gpu1']}")
    world.start_agent()
    world.until(2)
    assert world.node.kill(holder) == -9
    world.until(3)


def test_a_gpu_that_is_taken_out_is_unhealthy_at_once_and_comes_back_by_itself(world: World) -> None:
    world.until(3)
    name, address = "gpu1", world.node.address["gpu1"]
    world.node.unplug(name)
    world.until(2)
    world.node.plug(name)
    assert world.node.call("facts", "wait_for", address, True, 60) >= 0
    done = world.node.fairlead("vfio", "bind", address)
    assert done.code == 0, done
    world.until(3)
    world.group[name] = world.node.call("facts", "nodes", address)["group"]
    assert world.stranger(name) == "EBUSY"


def test_an_agent_killed_in_the_middle_of_giving_a_gpu_away_loses_and_doubles_none(world: World) -> None:
    world.until(3)
    world.restart_agent(dying_at="vfio.before-let-go")
    with pytest.raises(NodeError):
        world.admit("unlucky")
    assert world.node.wait(world.agent, limit_s=30) == -9
    world.start_agent()
    world.until(3)
    pods = ("one", "two", "three")  # the kubelet asks for the GPU again, whose answer was lost
    assert sorted(world.admit(pod, again_s=LIMIT_S) for pod in pods) == sorted(NAMES)
    world.agree()
    world.end(*pods)
    world.agree()


def test_an_agent_killed_in_the_middle_of_a_reset_leaves_a_gpu_that_the_next_resets_whole(world: World) -> None:
    world.until(3)
    world.restart_agent(dying_at="vfio.reset-done")
    name = world.admit("before")
    method = f"/sys/bus/pci/devices/{world.node.address[name]}/reset_method"
    before = world.node.output(f"cat {method}").split()
    assert "bus" in before
    world.until_named("before")
    world.node.call("kubelet", "end", "before")
    assert world.node.wait(world.agent, limit_s=60) == -9
    assert sorted(world.node.output(f"cat {method}").split()) == sorted(before), "no method is lost"
    world.node.output(f"echo bus > {method}")  # what a kill in the middle of the bus reset leaves
    world.start_agent()
    world.until(3)
    world.agree()
    assert world.node.output(f"cat {method}").split() == before


TURNS, ROUNDS, TURNS_S = 1000, 5, 60.0


def test_ledger_kernel_and_board_agree_over_turns_of_programs_and_kills(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many turns of `openers` as the time allows, up to a thousand, with a kill -9 of the agent after each part."""
    world.until(3)
    nodes = {f"x1-{world.module(name)}": world.group[name] for name in NAMES}
    told = []
    for seed in range(ROUNDS):
        keys = {f"x1-{world.module(name)}": world.key(name) for name in NAMES}
        line = (nodes, keys, RESOURCE, world.agent, seed, TURNS // ROUNDS, TURNS_S / ROUNDS)
        told.append(world.node.call("openers", "walk", *line, limit_s=300))
        assert told[-1]["violations"] == [], (told[-1], world.node.log("agent.err")[-2000:])
        world.agree()
        world.restart_agent()  # while no agent runs nobody keeps the nodes of free GPUs: see Known flaws
    world.agree()
    counts = sum((Counter(one["counts"]) for one in told), Counter[str]())
    with capsys.disabled():
        print(f"\n{sum(one['turns'] for one in told)} turns in {sum(one['seconds'] for one in told):.0f} s: {counts}")  # noqa: T201
    assert min(counts["admitted"], counts["opened"], counts["ended"], counts["stranger EBUSY"]) > 0, counts


MACHINES = 10


def test_ledger_kernel_and_board_agree_over_turns_of_machines(world: World) -> None:
    """Each machine finds no bytes, leaves some, and ends before its pod or after it, which was deleted by force."""
    world.until(3)
    for turn in range(MACHINES):
        name = world.admit(f"machine-{turn}")
        pid = world.machine(f"machine-{turn}", name)
        assert [gpu.found for gpu in tenant.reports(world.node.log(f"machine-{turn}"))] == [0]
        assert world.node.board.translated(name), "what tells a machine from nobody"
        world.agree()
        before = world.resets()[name]
        if turn % 2:
            world.node.call("kubelet", "end", f"machine-{turn}")
            world.until(2)
            world.agree()
            assert world.resets()[name] == before, "no reset reaches a machine"
            assert world.node.kill(pid) == -9
        else:
            assert world.node.kill(pid) == -9
            world.node.call("kubelet", "end", f"machine-{turn}")
        world.until(3)
        world.agree()


def test_what_the_agent_holds_is_neither_released_nor_reset_by_hand(world: World) -> None:
    world.until(3)
    address, before = world.node.address["gpu1"], world.resets()
    for verb in ("release", "reset"):
        done = world.node.fairlead("vfio", verb, address)
        assert done.code != 0
        assert "in use" in done.out + done.err, done
    assert world.resets() == before
    rows = json.loads(world.node.fairlead("vfio", "list", "-o", "json").out)
    assert {one["driver"] for one in rows if one["address"] == address} == {"vfio-pci"}, rows


def test_after_a_power_cut_every_gpu_is_reset_before_it_is_given_away(world: World) -> None:
    world.until(3)
    held = world.admit("before")
    time.sleep(3)  # the kubelet lists it
    world.node.cut_off()
    power_on(world.node, tenants=1)
    before: dict[str, Any] = world.resets()
    world.begin()
    world.until(3)
    assert all(count > before[name] for name, count in world.resets().items() if name != held)
    until = time.monotonic() + LIMIT_S  # this kubelet knows of no pod any more, so its GPU comes back
    while world.resets()[held] == before[held]:
        assert time.monotonic() < until, world.node.log("agent.err")[-3000:]
        time.sleep(0.2)
    world.until(3)
    assert {world.stranger(name) for name in NAMES} == {"EBUSY"}
    assert world.node.kill(world.agent) == -9
    done = world.node.fairlead("vfio", "release", world.node.address["gpu1"])
    assert done.code == 0, done
    assert world.node.call("facts", "functions")[world.node.address["gpu1"]]["driver"] == ""


def test_the_published_daemonsets_variables_offer_all_eight_and_open_none(world: World) -> None:
    """The article's DaemonSet by its `env`, beside real VFIO; what its container may not do is in the contract ring."""
    node = world.node
    if node.wait(world.agent, limit_s=0) is None:
        node.kill(world.agent)
    gpus = [node.address[one.name] for one in layout.HGX_H100.gpus()]
    done = node.fairlead("vfio", "bind", *gpus)
    assert done.code == 0, done
    groups = [node.call("facts", "nodes", address)["group"] for address in sorted(gpus)]
    world.agent = node.spawn_fairlead("daemonset", "agent", env=VARIABLES)
    until = time.monotonic() + LIMIT_S
    while node.call("kubelet", "capacity").get("nvidia.com/gpu") != [8, 8]:
        assert time.monotonic() < until, node.log("daemonset.err")[-3000:]
        time.sleep(0.3)
    found = json.loads(node.output("cat /var/run/cdi/*.json"))
    assert found["kind"] == PUBLISHED["kind"]
    assert found["devices"] == [
        {"name": str(at), "containerEdits": {"deviceNodes": [{"path": path, "type": "c", "permissions": "rw"}]}}
        for at, path in enumerate(groups)
    ]
    assert [node.call("facts", "open_twice", path)[0] for path in groups] == [""] * 8, "the agent keeps no node open"
    assert node.kill(world.agent) == -9
