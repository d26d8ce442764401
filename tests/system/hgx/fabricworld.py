"""An HGX node whose agent, kubelet and Fabric Manager a test commands: slots of several GPUs, each with its partition.

VFIO, groups, the kubelet's protocol and the agent are real in the node. What stands in: the Fabric Manager and its
library (`tests/fabricstub`), which no registry has, beside `fairlead fabric serve` as in a Service VM.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hgx import image, layout, tenant
from hgx.function import Reset
from hgx.layout import Layout
from hgx.node import Node
from hgx.shown import hgx_node

from tests import passedchecker
from tests.fabricstub import library
from tests.fabricstub.lattice import LATTICES

LIMIT_S = 300
PYTHON = Path(sys.executable).resolve()
SWITCHES = "/state/switches.json"
PRELOADED = ("fairlead.cli.process.agent", "fairlead.cli.layer.fabric.serve", "fairlead.node.leaseparts", "kubelet")
"""Imported once in the node: each start of a program of Fairlead's would else take seconds for it."""
_STUB = Path(library.__file__).parent
_SEEN = """
import dataclasses
from pathlib import Path
from fairlead.model.evidence import Evidence
from fairlead.node.lease import baselines
from fairlead.plan.lease import baseline

def main(folder, device, firmware):
    folder = Path(folder)
    folder.mkdir(parents=True, mode=0o700)
    seen = Evidence(gpu="of-another-node", device=device, vbios=firmware, inforom="G520")
    learned = baseline.learn(baselines.read_learned(folder), seen)
    baselines.write_learned(folder, dataclasses.replace(learned, approvals=1))
"""
"""Has a node know a board that it has not read yet, as one whose state folder brings what was seen elsewhere."""


class World:
    """A node whose agent, kubelet and Fabric Manager a test commands."""

    def __init__(self, node: Node, lattice: str = "h100") -> None:
        self.node, self.lattice = node, lattice
        self.names = {table.module: table.name for table in node.board.layout.gpus() if table.module is not None}
        """Of the board's functions by module."""
        self.agent = self.manager = 0
        self.env = {"FAIRLEAD_FABRIC_SECRET": "/state/fabric.secret", "FAIRLEAD_FABRIC_LIBRARY": "/stub/libnvfm.so.1"}

    def begin(self) -> None:
        self.node.do("preload", PRELOADED)
        done = self.node.fairlead("vfio", "bind", *(self.node.address[name] for name in self.names.values()))
        assert done.code == 0, done
        self.node.output("umask 077; head -c 32 /dev/urandom | base64 > /state/fabric.secret")
        self.start_manager()
        serve = ("fabric", "serve", "--address", "/run/fm.sock", "--listen", "/run/fabric.sock")
        self.node.spawn_fairlead("serve", *serve, env=self.env)
        self.node.wait_for_log("serve.out", "serving", limit_s=120)
        self.node.call("kubelet", "start")
        self._approve()
        self.start_agent()

    def _approve(self) -> None:
        """Approve the board's firmware before its first reading: a machine that reads eight GPUs again takes long."""
        table = self.node.board.layout.gpus()[0]
        board = f"{table.device:04x}10de"
        self.node.script(_SEEN, "/state/fairlead/lease", board, f"0x{table.firmware:08X}")
        done = self.node.fairlead("lease", "baseline", "approve", board, "--state-folder", "/state/fairlead")
        assert done.code == 0, done

    def start_manager(self, *words: str) -> None:
        """Start the Manager. Args: words: `restart`, for one that was there before."""
        program = (str(PYTHON), "-I", "/stub/tests/fabricstub/manager.py", "unix:/run/fm.sock", self.lattice, *words)
        self.manager = self.node.spawn("manager", f"exec {' '.join(program)} state {SWITCHES}")
        self.node.wait_for_log("manager", "ready", limit_s=60)

    def start_agent(self, *, is_verifying: bool = True, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start the agent. Args: is_verifying: it reads GPUs in machines between two tenants; else it resets alone."""
        words = ("--state-folder", "/state/fairlead", "--node-vfio", "bound", "--node-engine", "containerd://2.2.1")
        env = {"FAIRLEAD_NODE_FABRIC": "on", "FAIRLEAD_FABRIC_AGENT": "/run/fabric.sock"}
        env |= self.env | (tenant.verifier_env(self.node) if is_verifying else {}) | dict(more)
        self.agent = self.node.spawn_fairlead("agent", "agent", *words, env=env)

    def key(self, module: int) -> str:
        """Return the ledger's key of a GPU: it has the board's serial number."""
        serial = f"{self.node.board[self.names[module]].table.serial:016x}"
        rows = self.node.call("partitionchecker", "keys_of", "/state/fairlead/lease/ledger.db")
        (found,) = (one for one in rows if serial in passedchecker._digits(one))
        return str(found)

    def sizes(self) -> dict[int, int]:
        """Return how many slots of each size can be given away."""
        seen: dict[str, list[int]] = self.node.call("kubelet", "capacity")
        return {int(name.rpartition("-x")[2]): free for name, (_, free) in seen.items() if "-x" in name}

    def until(self, **wanted: int) -> None:
        """Wait until so many can be given away, as `x4=2`."""
        expected = {int(name[1:]): count for name, count in wanted.items()}
        until, seen = time.monotonic() + LIMIT_S, dict[int, int]()
        while not expected.items() <= (seen := self.sizes()).items():
            assert time.monotonic() < until, (seen, self.node.log("agent.err")[-3000:])
            time.sleep(0.5)

    def admit(self, pod: str, size: int) -> tuple[int, ...]:
        """Admit a pod with a slot; returns its modules."""
        device, *_ = self.node.call("kubelet", "admit", pod, f"nvidia.com/pgpu-x{size}")
        return tuple(int(one) for one in str(device).partition("-")[2].split("."))

    def active(self) -> list[int]:
        """Return the partitions of several GPUs that the switches have."""
        text = self.node.output(f"cat {SWITCHES} 2>/dev/null || echo '[]'")
        partitions = LATTICES[self.lattice].partitions
        return [one for one in json.loads(text) if len(partitions[one]) > 1]

    def wait_active(self, *partitions: int) -> None:
        until = time.monotonic() + LIMIT_S
        while self.active() != list(partitions):
            assert time.monotonic() < until, (self.active(), self.node.log("agent.err")[-3000:])
            time.sleep(0.3)

    def published(self) -> dict[str, list[str]]:
        """Return the nodes of each device that CDI specs show."""
        found: dict[str, list[str]] = {}
        for text in self.node.output("cat /var/run/cdi/*.json 2>/dev/null || true").split("\n}\n"):
            if text.strip():
                document = json.loads(text + "}")
                found |= {
                    one["name"]: [each["path"] for each in one["containerEdits"]["deviceNodes"]]
                    for one in document["devices"]
                }
        return found

    def wait_published(self, name: str) -> list[str]:
        until = time.monotonic() + LIMIT_S
        while name not in (seen := self.published()):
            assert time.monotonic() < until, (seen, self.node.log("agent.err")[-3000:])
            time.sleep(0.3)
        return seen[name]

    def machines(self) -> list[tuple[int, float]]:
        """Return how many GPUs each verifier's machine has read, and in how many seconds."""
        found = []
        for line in self.node.log("agent.err").splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("event") == "gpus read by a machine":
                found.append((str(told["gpu"]).count(",") + 1, float(told["duration_s"])))
        return found

    def resets(self, modules: tuple[int, ...]) -> list[int]:
        boards = [self.node.board[self.names[module]] for module in modules]
        return [board.resets(Reset.FLR) + board.resets(Reset.BUS) for board in boards]


@contextlib.contextmanager
def running(
    kind: type[World] = World,
    *,
    board: Layout = layout.HGX_H100,
    lattice: str = "h100",
    files: Mapping[str, bytes] | None = None,
    modules: Sequence[Path] = (),
    tenants: int = 2,
    memory_mib: int = 1536,
    shared: Mapping[str, Path] | None = None,
) -> Iterator[World]:
    """Boot a board's node and start all of that. Args: lattice: the partitions' name.   else as `hgx_node`'s."""
    with tempfile.TemporaryDirectory(prefix="nvfm-") as name:
        made = library.compile_library(Path(name))
        packed = {"stub/libnvfm.so.1": made.read_bytes(), **(files or {})}
    parts: dict[str, Any] = image.verifying()
    packed |= parts.pop("files")
    packed |= {f"stub/tests/fabricstub/{name}": (_STUB / name).read_bytes() for name in ("manager.py", "lattice.py")}
    own = [Path(__file__).parent / "kubelet.py", *modules]
    given = {"files": packed, "modules": own, "tenants": tenants, "memory_mib": memory_mib, "shared": shared, **parts}
    with hgx_node(board, **given) as node:
        found = kind(node, lattice)
        found.begin()
        yield found
