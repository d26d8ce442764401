"""A node with NVLink slots whose agent is a process that can be killed: what lasts is in files, as in a kernel.

    python -m tests.slotnode ROOT STUB [service]

The agent runs the shipped ledger, gates, specs, keeper of partitions and verdicts over a reading; it takes orders by
its input. Pods and machines are a test's. A group's node is a file that takes one opener by `flock`: the kernel lets
go of it when its opener dies, as it does of a real one. A reset empties a GPU's memory, a reading leaves a mark that
the next machine removes (`katastandin/emulatordouble.py`). The Fabric Manager is `fabricstub`'s, a process of its own,
and so is the shipped agent beside it: both are the Service VM, whose boot id is a file's text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fairlead import errors, telemetry
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.lease import baselines, memory, passthroughreset, signing
from fairlead.node.vfio import thirdgate
from fairlead.node.vm import emulator, verifier
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.lease import baseline
from fairlead.silicon.fabric import address, agentserver, connection
from fairlead.wire.fairlead.guestreport import GPUReport
from tests import nodehold, partitionchecker
from tests.fabricstub import manager
from tests.fabricstub.lattice import H100
from tests.katastandin import stops
from tests.unit.node.fabric.fabricnode import MODULES, SECRET, FabricNode

BOARD = "233010de"
PROGRAM = Path(__file__).parent.parent


def address_of(module: int) -> str:
    """Return the PCI address of a GPU."""
    return f"0000:{MODULES.index(module):02x}:00.0"


class KilledNode(FabricNode):
    """The agent's part of the node."""

    def gpu(self, module: int) -> PassthroughGPU:
        path = DeviceNode(
            path=f"/dev/vfio/{module}",
            host_path=str(self.folder / "dev/vfio" / str(module)),
            major=240,
            minor=module,
            mode=0o600,
        )
        return PassthroughGPU(
            key=GPUUUID(f"pcie-{module}"),
            vendor=Vendor.NVIDIA,
            address=address_of(module),
            model="GH100 [H100]",
            module=module,
            group_nodes=(path,),
        )

    def take(self, one: PassthroughGPU) -> nodehold.NodeHold:
        return nodehold.hold(Path(one.group_nodes[-1].host_path), one.address)

    async def reset(self, one: PassthroughGPU) -> None:
        (self.folder / "memory" / one.address).write_text("")

    def resetter(self, third: thirdgate.ThirdGate) -> passthroughreset.PassthroughReset:
        self.third, lease = third, self.folder / "lease"
        by = passthroughreset.ByMachine(
            machine=self,  # type: ignore[arg-type]  # what is used of one
            boards=memory.KnownBoards(lease, 1),
            kept=memory.ReportFile(lease, signing.Signer(lease)),
            note_module=self.note_module,
        )
        counted = self.keeper.resets.counting(self.reset)
        return passthroughreset.PassthroughReset(
            third.find, counted, node="n", boot_id=self.boot, limit_s=20, by_machine=by
        )

    async def note_module(self, gpu: PassthroughGPU, module: int | None) -> None:
        """Hold what the machine reads against what its registers said."""
        assert module in {None, gpu.module}

    def expecting(self, _: str) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    async def read(self, gpu: PassthroughGPU) -> verifier.Reading:
        """Play the verifier's machine: it has the GPU while it reads."""
        async with self.third.lend([str(gpu.key)]):
            if any((self.folder / "stops" / step).exists() for step in stops.VERIFYING):
                await self._read_by_process(gpu)
            else:
                hold = self.take(gpu)
                await asyncio.sleep(0.01)
                hold.close()
        (self.folder / "read" / gpu.address).touch()
        seen = GPUReport(
            pci="0000:01:00.0",
            serial=f"{gpu.module}",
            device=BOARD,
            vbios="96.00",
            inforom="G520",
            module=gpu.module,
            link_width=16,
            ecc_mode=True,
            ecc_mode_pending=True,
            mig_mode=False,
        )
        return verifier.Reading(reported=seen, driver="580", image="sha256:0", seconds=0.01)

    async def _read_by_process(self, gpu: PassthroughGPU) -> None:
        """Have a process of its own read it. Raises: Unavailable: it was killed."""
        words = (sys.executable, "-m", "tests.katastandin.verifierdouble", str(self.folder), gpu.address)
        process = await asyncio.create_subprocess_exec(*words, cwd=PROGRAM, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        if process.returncode or json.loads(said) != {"module": gpu.module}:
            message = f"the verifier's machine ended by itself: {process.returncode}"
            raise errors.Unavailable(message, reason=emulator.ENDED)

    async def list_holdings(self) -> tuple[Holding, ...]:
        self.listed = json.loads((self.folder / "listed.json").read_text())
        return await super().list_holdings()

    async def obey(self, word: str, *rest: str) -> str:
        """Carry out one order; returns the answer."""
        if word == "arm":
            telemetry.arm_crash_point(*rest)
        elif word == "poke":
            self.gate.poke()
        elif word == "known":
            return "known" if not self.keeper.problem else "unknown"
        elif word == "hold":
            try:
                await self.gate.hold(f"nvidia.com/h100-{rest[0].partition('-')[0]}", [self.device(rest[0])])
            except (errors.FairleadError, StopIteration) as error:
                return getattr(error, "reason", "") or "NoSuchSlot"
        return "ok"

    async def obey_input(self) -> None:
        """Obey, to the end of the input."""
        self.beside = self._service()  # listens in another process; here it says that there is one
        async with self.agent():
            await self.until_known()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            while order := await asyncio.to_thread(sys.stdin.readline):
                sys.stdout.write(f"{await self.obey(*order.split())}\n")
                sys.stdout.flush()
            os._exit(0)

    def _service(self) -> agentserver.AgentServer:
        """Return the agent in the Service VM."""
        about = agentserver.Whereabouts(machine=(self.folder / "machine").read_text)
        own = connection.Connection(f"{self.folder.name}-service", self.dial)
        return agentserver.AgentServer(own, SECRET, timeout_s=5, is_allowed=lambda _: True, whereabouts=about)

    def serve_manager(self) -> None:
        """Be the agent in the Service VM, for ever."""
        self._service().listen(address.parse(str(self.folder / "agent.sock")))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Event().wait()


@dataclass
class SlotNode:
    """The node as a test sees it."""

    root: Path
    stub: Path

    def __post_init__(self) -> None:
        self._agent: subprocess.Popen[str] | None = None
        self._manager: subprocess.Popen[str] | None = None
        self._managers = 0
        self._service: subprocess.Popen[str] | None = None
        self._machines = 0
        self.pods: dict[str, str] = {}
        """Pod by slot, as the kubelet lists them."""
        for name in ("dev/vfio", "sys/bus/pci/devices", "memory", "read", "stops", "cdi"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "lease").mkdir(mode=0o700, exist_ok=True)
        for module in MODULES:
            (self.root / "dev/vfio" / str(module)).touch()
            (self.root / "memory" / address_of(module)).touch()
            members = self.root / "sys/kernel/iommu_groups" / str(module) / "devices"
            real = self.root / "sys/devices" / address_of(module)
            members.mkdir(parents=True)
            real.mkdir(parents=True)
            for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330")):
                (real / name).write_text(f"{text}\n")
            (real / "iommu_group").symlink_to(members.parent)
            for link in (members / real.name, self.root / "sys/bus/pci/devices" / real.name):
                link.symlink_to(real)
        self._write("listed.json", {})
        self._write("partitions.json", H100.partitions)
        self._write("modules.json", {address_of(module): module for module in MODULES})

    def _write(self, name: str, value: object) -> None:
        part = self.root / f"{name}.part"
        part.write_text(json.dumps(value))
        part.replace(self.root / name)

    # agent and Manager

    def start_manager(self, *faults: str, waits: bool | None = None) -> None:
        """Start the Fabric Manager, the first time or again.

        Args: faults: of the stub, `NAME=VALUE`.   waits: whether it wants the list of active partitions; None: again.
        """
        waits, self._managers = bool(self._managers) if waits is None else waits, self._managers + 1
        words = [f"unix:{self.root}/fm.sock", "h100", *(["restart"] if waits else []), "state"]
        words += [str(self.root / "switches"), *(["fault", *faults] if faults else [])]
        self._manager = subprocess.Popen(
            (sys.executable, "-I", str(PROGRAM / "tests/fabricstub/manager.py"), *words),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._manager.stdout is not None
        assert self._manager.stdout.readline() == "ready\n"

    def start_service(self) -> None:
        """Start the Service VM: its switches come up with nothing active; it has a Manager and an agent."""
        self._machines += 1
        (self.root / "machine").write_text(f"{self._machines:04x}")
        if self._machines > 1:
            self._write("switches", [])
        self.start_manager(waits=False)
        self._service = self._spawn("service")
        assert self._service.stdout is not None
        assert self._service.stdout.readline() == "ready\n", self.log()[-3000:]

    def kill_service(self) -> None:
        """End the Service VM with all that is in it; machines that run on it have no NVLink from now on."""
        (self.root / "switches-lost").touch()
        self.kill_manager()
        assert self._service is not None
        self._service.kill()
        self._service.communicate()

    def kill_manager(self) -> None:
        """End the Fabric Manager by SIGKILL; what is programmed stays."""
        assert self._manager is not None
        self._manager.kill()
        self._manager.communicate()

    def fail_manager(self, *faults: str) -> None:
        """Give the Manager that runs some faults."""
        for fault in faults:
            manager.ask(str(self.root / "fm.sock"), f"fault {fault}")

    def await_managers_death(self, limit_s: float = 60) -> None:
        """Wait until the Manager has ended by a fault."""
        assert self._manager is not None
        self._manager.wait(limit_s)
        self._manager.communicate()

    def knows_partitions(self) -> bool:
        """Return whether the agent knows which partitions are active, by its own word."""
        return self.ask("known") == "known"

    def start_agent(self) -> None:
        """Start the agent, and return once it serves."""
        self._agent = self._spawn()
        assert self._read(60) == "ready", self.log()[-3000:]

    def _spawn(self, *words: str) -> subprocess.Popen[str]:
        with (self.root / "agent.log").open("a") as log:
            return subprocess.Popen(
                (sys.executable, "-m", "tests.slotnode", str(self.root), str(self.stub), *words),
                cwd=PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def kill_agent(self) -> None:
        """End the agent by SIGKILL, if it lives."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.communicate()
            self._agent = None

    def await_death(self, limit_s: float = 30) -> None:
        """Wait until the agent has died at a crash point."""
        assert self._agent is not None
        assert self._agent.wait(limit_s) == -signal.SIGKILL
        self._agent.communicate()
        self._agent = None

    def ask(self, *order: str) -> str | None:
        """Give the agent an order; returns its answer, None where it died over it."""
        agent = self._agent
        assert agent is not None
        assert agent.stdin is not None
        try:
            agent.stdin.write(f"{' '.join(order)}\n")
            agent.stdin.flush()
        except BrokenPipeError:
            return None
        return self._read(60)

    def _read(self, limit_s: float) -> str | None:
        assert self._agent is not None
        stream: IO[str] | None = self._agent.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], limit_s)
        assert ready, f"the agent does not answer: {self.log()[-3000:]}"
        return stream.readline().strip() or None

    def log(self) -> str:
        """Return what the agent has logged."""
        return (self.root / "agent.log").read_text()

    # the kubelet

    def report(self, slot: str, pod: str) -> None:
        """Have the kubelet list a slot for a pod; forget it where no pod is named."""
        self.pods[slot] = pod
        self.pods = {one: who for one, who in self.pods.items() if who}
        self._write("listed.json", self.pods)

    def is_shown(self, slot: str) -> bool:
        """Return whether an engine would resolve a slot's CDI name."""
        return slot in partitionchecker._shown(self.root / "cdi")

    # what is true

    def place(self) -> partitionchecker.Place:
        """Return where the checker finds these things."""
        return partitionchecker.Place(
            switches=self.root / "switches",
            ledger=self.root / "lease/ledger.db",
            cdi=self.root / "cdi",
            partitions=H100.partitions,
            modules={f"pcie-{module}": module for module in MODULES},
            machines=self.machines,
            is_clean=self.is_clean,
        )

    def machines(self) -> dict[int, str]:
        """Return whose machine has each GPU: emulators by what they have open."""
        found = {}
        for pid in emulators(self.root):
            with contextlib.suppress(OSError):
                for handle in Path(f"/proc/{pid}/fd").iterdir():
                    place, _, group = str(handle.readlink()).rpartition("/")
                    if place == str(self.root / "dev/vfio"):
                        found[int(group)] = f"machine {pid}"
        return found

    def is_clean(self, module: int) -> bool:
        """Return whether a GPU was emptied and read since its last tenant."""
        address = address_of(module)
        return not (self.root / "memory" / address).read_text() and (self.root / "read" / address).exists()

    @property
    def active(self) -> list[int]:
        """Return the partitions of several GPUs that the switches have."""
        found = manager.switched_on(self.root / "switches")
        return [one for one in found if len(H100.partitions[one]) > 1]

    def states(self) -> dict[int, str]:
        """Return the ledger's state of each GPU, by module."""
        return {module: row["state"] for module, row in partitionchecker._rows(self.place()).items()}

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return the ledger's rows, by module."""
        return partitionchecker._rows(self.place())

    @property
    def violations(self) -> list[str]:
        """Return what a machine has seen that must never happen."""
        path = self.root / "violations"
        return path.read_text().splitlines() if path.exists() else []

    async def until_free(self, limit_s: float = 60) -> None:
        """Wait until every GPU is free and no partition of several is active."""
        until = time.monotonic() + limit_s
        while set(self.states().values()) != {"Free"} or self.active:
            assert time.monotonic() < until, (self.rows(), self.active, self.log()[-2000:])
            if self._agent is not None:
                self.ask("poke")
            await asyncio.sleep(0.02)

    async def until_linked(self, limit_s: float = 60) -> None:
        """Wait until the slots that are listed have their partitions again, after the switches had lost them."""
        until, wanted = time.monotonic() + limit_s, {partitionchecker.slot_modules(one) for one in self.pods}
        while {H100.partitions[one] for one in self.active} != {one for one in wanted if len(one) > 1}:
            assert time.monotonic() < until, (self.active, wanted, self.log()[-2000:])
            await asyncio.sleep(0.02)
        (self.root / "switches-lost").unlink()

    def close(self) -> None:
        """End everything."""
        self.kill_agent()
        for process in (self._service, self._manager):
            if process is not None:
                process.kill()
                process.communicate()
        for pid in emulators(self.root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def emulators(root: Path) -> list[int]:
    """Return the pids of the doubles of QEMU that play machines of a node."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(word.endswith(b"/emulatordouble.py") for word in words) and str(root).encode() in words:
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def running(root: Path, stub: Path) -> Iterator[SlotNode]:
    """Give a node whose agent runs and whose GPUs are free."""
    node = SlotNode(root, stub)
    try:
        node.start_service()
        node.start_agent()
        asyncio.run(approve(node))
        asyncio.run(node.until_free())
        yield node
    finally:
        node.close()


async def approve(node: SlotNode) -> None:
    """Approve the firmware that the first reading saw, as an administrator does."""
    until = time.monotonic() + 60
    while not any("BaselineMissing" in row["reason"] for row in node.rows().values()):
        assert time.monotonic() < until, (node.rows(), node.log()[-2000:])
        await asyncio.sleep(0.02)
    baselines.decide(
        node.root / "lease",
        lambda known, decided: baseline.approve(decided, known, BOARD, by="ada", at=time.time()),
    )


if __name__ == "__main__":
    made = KilledNode(folder=Path(sys.argv[1]), stub=Path(sys.argv[2]))
    if sys.argv[3:] == ["service"]:
        made.serve_manager()
    asyncio.run(made.obey_input())
