"""MPS by the driver's own daemon, without touching the compute mode; MIG as it is, read and never set."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from fairlead import errors
from fairlead.model.gpu import GPU
from fairlead.model.mig import MIGProfile, Partition
from fairlead.node.sharing import mpsdaemon
from fairlead.plan.mig import table
from fairlead.plan.sharing import mps
from fairlead.silicon.port import MPSSilicon, Partitionable
from tools.gpu import context as contexts
from tools.gpu import workload
from tools.gpu.outcome import Log

_LIMIT_MIB = 4096
_PERCENT = 25


def run(context: contexts.Context, log: Log) -> None:
    """Read MIG, then run two clients below one daemon."""
    asyncio.run(_run(context, log))


async def _run(context: contexts.Context, log: Log) -> None:
    silicon = context.open_silicon()
    try:
        inventory = await silicon.scan()
        if isinstance(silicon, Partitionable) and (partitioner := silicon.partitioner()) is not None:
            by_name = {one.name: one for one in reversed(await partitioner.list_partitions())}
            for partition in by_name.values():
                _compare_profiles(partition, log)
        if not isinstance(silicon, MPSSilicon) or not inventory.gpus:
            log.skip("MPS", "this silicon has none")
            return
        program = silicon.mps_program()
        if program is None:
            log.skip("MPS", "nvidia-cuda-mps-control is not on this machine")
            return
        gpu = inventory.gpus[0]
        folders = mpsdaemon.folders_of(context.folder / "mps", gpu.uuid)
        control = mpsdaemon.Control(gpu.uuid, folders, program)
        try:
            with log.timed("MPS daemon ready"):
                await control.start()
            log.ok("MPS daemon", "started by our control, and it answers")
            await control.set_limits(mps.Daemon(gpu=gpu.uuid, memory_mib=_LIMIT_MIB, percent=_PERCENT))
            said = await control.ask("get_default_active_thread_percentage")
            log.judge("limit of threads read back", said.startswith(str(_PERCENT)), said)
            memory = await control.ask("get_default_device_pinned_mem_limit 0")
            log.judge("limit of memory read back", str(_LIMIT_MIB) in memory or "4G" in memory, memory, required=False)
            await asyncio.to_thread(_clients, context, gpu, folders, log)
        except errors.Unavailable as error:
            log.fail("MPS daemon", errors.sentence(error))
        finally:
            pid = await asyncio.to_thread(mpsdaemon.find_daemon, folders)
            await control.end()
            is_gone = not folders.base.exists() and (pid is None or not _runs(pid))
            log.judge("MPS daemon ended without a trace", is_gone, f"pid {pid}, {folders.base}")
    finally:
        await silicon.close()


def _runs(pid: int) -> bool:
    """Return whether a process is there and not merely unreaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _compare_profiles(partition: Partition, log: Log) -> None:
    """Hold the driver's profiles against the table that plans are made by where no GPU is."""
    if not partition.profiles:
        log.note("MIG", f"{partition.name} cannot be partitioned")
        return
    log.fact(f"MIG of gpu {partition.index}", [dataclasses.asdict(one) for one in partition.profiles])
    known = table.find_model(int(partition.device_filter[2:6], 16))  # 0x233010DE: the device before the vendor
    if known is None:
        log.note("MIG table", f"no model of the table is {partition.name} ({partition.device_filter})")
        return
    ours = {one.name: one for one in known.profiles}
    for profile in partition.profiles:
        mine = ours.pop(profile.name, None)
        log.compare(f"MIG {profile.name}", None if mine is None else _essence(mine), _essence(profile), required=False)
    log.note("MIG profiles of the table that this driver does not offer", ", ".join(sorted(ours)) or "none")


def _essence(profile: MIGProfile) -> str:
    starts = ",".join(map(str, profile.starts))
    return f"id {profile.id}, {profile.slices} of compute, {profile.size} of memory at {starts}, most {profile.limit}"


def _clients(context: contexts.Context, gpu: GPU, folders: mpsdaemon.Folders, log: Log) -> None:
    """Two clients at once, each of which must see no more than its limits."""
    program = workload.build(context)
    if program is None:
        log.skip("clients of MPS", workload.build_problem(context))
        return
    env = {"PATH": contexts.PATH, mps.PIPE_VARIABLE: str(folders.pipe), "CUDA_VISIBLE_DEVICES": str(gpu.uuid)}
    most = _units(contexts.run((str(program), "query"), env={"PATH": contexts.PATH}, timeout_s=15).stdout)
    for number in range(2):
        done = contexts.run((str(program), "query"), env=env, timeout_s=15)
        units = _units(done.stdout)
        is_below = bool(units) and bool(most) and units <= -(-most * _PERCENT // 100)
        log.judge(
            f"client {number} has its share of the threads", is_below, f"{units} of {most}: {done.stderr.strip()}"
        )
        for mib, wanted in ((_LIMIT_MIB // 2, "took"), (_LIMIT_MIB + 1024, "refused")):
            done = contexts.run((str(program), "take", str(mib)), env=env, timeout_s=15)
            said = f"{done.stdout.strip()} {done.stderr.strip()}; wanted: {wanted}"
            log.judge(f"client {number} and {mib} MiB below a limit of {_LIMIT_MIB}", wanted in done.stdout, said)


def _units(said: str) -> int:
    """Return the multiprocessors of the first device of `workload query`; 0: it did not say."""
    words = said.split()
    return int(words[words.index("multiprocessors") + 1]) if "multiprocessors" in words else 0
