"""`fairlead doctor`: checks every layer from the bottom up and prints cause, consequence and fix.

Collecting and checking are apart: `collect` asks the running service, or the layers themselves where none runs; `check`
is a pure function from facts to findings. The exit code is 1 if anything would keep a container from its GPUs. Where a
cluster is meant, `cluster_facts` collects and `cluster_checks` checks.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.core import connection, invocation, options, output
from fairlead.cli.doctor import finding
from fairlead.cli.doctor import image as imageneeds
from fairlead.cli.doctor.finding import Finding
from fairlead.model import cdikind
from fairlead.plan.cdi import conflict
from fairlead.plan.pod import admission
from fairlead.serve.backend.hardware import EngineView, GPUListing, GPUView
from fairlead.serve.v1.nodeview import NodeView
from fairlead.serve.v1.statusview import STARTING_S
from fairlead.settings import Settings
from fairlead.silicon import running
from fairlead.wire.cdi import stamp
from fairlead_cdi import directory, emit

_CDI_WANTED: Final = (0, 5, 0)
_WELL: Final = frozenset({"", "Healthy"})
"""Words of a GPU's health that need no finding; empty: not judged yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was looked at."""

    service: str
    """Address and version of the service that answered; empty: none did."""
    service_error: str
    is_root: bool
    kernel: str
    engine: EngineView
    found: int
    unreadable: int
    silicon_error: str
    profile: str
    driver_problems: tuple[str, ...]
    nodes: tuple[NodeView, ...]
    node: str
    resource: str
    cdi_folder: Path
    specs: tuple[str, ...]
    """Names of the spec files in the CDI folder; the folder missing counts as none."""
    stale: tuple[str, ...] = ()
    """Which of them are of another boot or driver, one line each."""
    unhealthy: tuple[str, ...] = ()
    """GPUs that are there and not given to containers, one line each with the reason."""
    conflicts: tuple[conflict.Conflict, ...] = ()
    """Devices that two files of a folder define, in the folders that engines read."""
    age_s: float = math.inf
    """How long the service has run."""


@click.command()
@click.option("--image", metavar="IMAGE", help="check this image's needs (NVIDIA_REQUIRE_*) and nothing else")
@options.json_option
@options.cluster_options
@click.pass_context
def doctor(ctx: click.Context, *, image: str | None, form: str) -> None:
    """Check every layer and say how to mend it."""
    call = invocation.current(ctx)
    found = list(_findings(call) if image is None else imageneeds.check(imageneeds.collect(call, image)))
    if form != "text":
        output.show_value(found, form=form)
    else:
        for item in found:
            finding.show(item)
    ctx.exit(1 if any(item.level == "fail" for item in found) else 0)


def _findings(call: invocation.Invocation) -> Iterator[Finding]:
    meant = call.target()
    if not meant.is_cluster:
        return check(collect(call))
    # A cluster's client is imported where a cluster is meant: a machine's doctor does not pay for it.
    from fairlead.cli.core import cluster
    from fairlead.cli.doctor import cluster_checks, cluster_facts

    config = call.cluster_settings(meant)
    return cluster_checks.check(asyncio.run(cluster_facts.collect(config, cluster.access(config))))


def collect(call: invocation.Invocation) -> Seen:
    """Ask the service, or the layers themselves where none answers. Raises: Invalid: the settings are wrong."""
    config = call.settings()
    try:
        with connection.opened(call) as client:
            status = client.status()
            gpus = client.call("GET", "/v1/gpus", GPUListing).gpus
    except (errors.Unavailable, errors.ProtocolError) as error:
        return asyncio.run(_collect_below(config, errors.sentence(error)))
    folder = Path(status.cdi_folder)
    return Seen(
        service=f"fairlead {status.version} at {call.target().url}",
        service_error="",
        is_root=os.geteuid() == 0,
        kernel=os.uname().release,
        engine=status.engine or EngineView(),
        found=status.gpus.get("found", 0),
        unreadable=status.gpus.get("unreadable", 0),
        silicon_error="",
        profile=status.profile if status.is_simulated else "",
        driver_problems=status.problems,
        nodes=status.nodes,
        node=status.node,
        age_s=max(0.0, time.time() - status.started_at),
        resource=status.resource,
        cdi_folder=folder,
        specs=_specs(folder),
        unhealthy=tuple(_told(one) for one in gpus if one.health not in _WELL),
        stale=_stale(folder, config.silicon.root),
        conflicts=_conflicts(folder),
    )


def _told(one: GPUView) -> str:
    why = ": ".join(part for part in (one.reason, one.message) if part)
    return f"GPU {one.gpu.index} ({one.gpu.uuid}) is {one.health}" + (f": {why}" if why else "")


def _specs(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in folder.iterdir() if path.suffix in {".json", ".yaml"}))
    except OSError:
        return ()


def _stale(folder: Path, root: Path) -> tuple[str, ...]:
    """Hold the stamps in a folder to the boot and the drivers that run now."""
    now = running.read_running(root)
    found = directory.scan([str(folder)]).files
    marks = [(file, stamp.read(Path(file.path), file.spec.annotations)) for file in found if file.spec is not None]
    return tuple(
        f"{file.path} {why}" for file, mark in marks if mark for why in mark.staleness(now.boot_id, now.versions)
    )


def _conflicts(folder: Path) -> tuple[conflict.Conflict, ...]:
    """Return what an engine would refuse to resolve, of the devices in the folders that it reads."""
    folders = dict.fromkeys((*directory.DEFAULT_DIRECTORIES, str(folder)))
    registry = directory.scan(list(folders))
    own = {f"{folder}/{emit.file_name(kind)}" for kind in cdikind.ALLOCATED.values()}
    return conflict.find_any(registry, own)


async def _collect_below(config: Settings, service_error: str) -> Seen:
    # Hardware and engines are imported where no service could be asked: the usual call does not pay for them.
    from fairlead.engine import machine as engines
    from fairlead.silicon import machine

    engine, silicon_error, found, unreadable = EngineView(), "", 0, 0
    problems: tuple[str, ...] = ()
    try:
        info = await engines.open_engine(config.engine).info()
        engine = msgspec.convert(info, EngineView, from_attributes=True)
    except errors.FairleadError as error:
        engine = EngineView(problem=error.message, hint=error.hint)
    try:
        silicon = await asyncio.to_thread(machine.open_silicon, config.silicon, config.state.folder / "silicon")
        try:
            inventory = await silicon.scan()
            found, unreadable = len(inventory.gpus), len(inventory.unreadable)
            problems = tuple(text for driver in await silicon.scan_driver() for text in driver.problems)
        finally:
            await silicon.close()
    except errors.FairleadError as error:
        silicon_error = errors.sentence(error)
    return Seen(
        service="",
        service_error=service_error,
        is_root=os.geteuid() == 0,
        kernel=os.uname().release,
        engine=engine,
        found=found,
        unreadable=unreadable,
        silicon_error=silicon_error,
        profile=config.silicon.simulate,
        driver_problems=problems,
        nodes=(),
        node="",
        resource=config.node.resource,
        cdi_folder=config.node.cdi_folder,
        specs=_specs(config.node.cdi_folder),
        stale=_stale(config.node.cdi_folder, config.silicon.root),
        conflicts=_conflicts(config.node.cdi_folder),
    )


def check(seen: Seen) -> Iterator[Finding]:
    """Yield findings from the bottom layer up; every check yields at least one."""
    yield from _silicon(seen)
    yield from _driver(seen)
    yield from _kernel(seen)
    yield from _engine(seen)
    yield from _cdi(seen)
    yield from _service(seen)
    if seen.service:
        yield from _node(seen)


def _silicon(seen: Seen) -> Iterator[Finding]:
    if seen.silicon_error:
        yield Finding(
            check="silicon",
            level="fail",
            what=seen.silicon_error,
            why="without an answer of the driver no GPU can be given to anyone",
            fix="see whether `nvidia-smi` answers; the driver's own log is in `dmesg`",
        )
    elif not seen.found:
        yield Finding(
            check="silicon",
            level="fail",
            what="no GPU answered",
            why="there is nothing to give to containers",
            fix="install the vendor's driver, or try all of it with `fairlead up --simulate h100x8`",
        )
    else:
        simulated = f", SIMULATED by profile {seen.profile}" if seen.profile else ""
        yield Finding(check="silicon", level="ok", what=f"{seen.found} GPUs answered{simulated}")
    for text in seen.unhealthy:
        why = "it is not given to containers; the others work"
        fix = "`fairlead events` has what was seen; a reset of the GPU or a reboot brings most back"
        yield Finding(check="silicon", level="warn", what=text, why=why, fix=fix)
    if seen.unreadable:
        yield Finding(
            check="silicon",
            level="warn",
            what=f"{seen.unreadable} GPUs are there but do not answer",
            why="they are not advertised; the others work",
            fix="`fairlead gpus` names them; a reset or a reboot brings most back",
        )


def _driver(seen: Seen) -> Iterator[Finding]:
    for text in seen.driver_problems:
        why = "containers would miss a part of the driver"
        yield Finding(check="driver", level="warn", what=text, why=why, fix="as said there, then `fairlead doctor`")
    if not seen.driver_problems and seen.found:
        yield Finding(check="driver", level="ok", what="device nodes, modules and libraries are complete")


def _kernel(seen: Seen) -> Iterator[Finding]:
    if not seen.is_root:
        yield Finding(
            check="kernel",
            level="warn",
            what="not running as root",
            why="`fairlead up` makes device nodes and starts containers with device rules",
            fix="run it with sudo",
        )
    cgroup = f", cgroup v{seen.engine.cgroup_version}" if seen.engine.cgroup_version else ""
    yield Finding(check="kernel", level="ok", what=f"Linux {seen.kernel}{cgroup}")


def _engine(seen: Seen) -> Iterator[Finding]:
    engine = seen.engine
    if engine.problem:
        why = "the engine starts containers and injects their devices"
        fix = engine.hint or "install podman 4.3 or newer"
        yield Finding(check="engine", level="fail", what=engine.problem, why=why, fix=fix)
        return
    what = f"{engine.name} {engine.version} with {engine.runtime}, reads CDI up to {engine.cdi_ceiling}"
    if _version(engine.cdi_ceiling) < _CDI_WANTED:
        why = "specs are written in CDI 0.5.0; an older reader would refuse them"
        yield Finding(check="engine", level="warn", what=what, why=why, fix="install podman 4.3 or newer")
    else:
        yield Finding(check="engine", level="ok", what=what)
    for note in engine.notes:
        yield Finding(check="engine", level="warn", what=note, why="detected here and worked around")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _cdi(seen: Seen) -> Iterator[Finding]:
    for one in seen.conflicts:
        yield Finding(
            check="cdi",
            level="fail",
            what=one.message,
            why="two files of one folder define it, so every engine refuses both: no container with it starts",
            fix=one.remedy,
        )
    for text in seen.stale:
        why = "device numbers and library names in it may be another machine state's"
        fix = "`fairlead cdi generate` once more, or leave `fairlead cdi watch` running"
        yield Finding(check="cdi", level="warn", what=text, why=why, fix=fix)
    if seen.specs:
        what = f"{len(seen.specs)} specs in {seen.cdi_folder}"
        yield Finding(check="cdi", level="ok", what=f"{what}: {', '.join(seen.specs)}")
    elif seen.service and seen.found:
        yield Finding(
            check="cdi",
            level="fail",
            what=f"no spec in {seen.cdi_folder}, though a service with GPUs runs",
            why="the engine finds devices by their specs in this folder",
            fix="see the service's log; `fairlead cdi generate` shows what it should write",
        )
    else:
        yield Finding(check="cdi", level="ok", what=f"no spec in {seen.cdi_folder} yet: the service writes them")


def _service(seen: Seen) -> Iterator[Finding]:
    if seen.service:
        yield Finding(check="service", level="ok", what=seen.service)
    else:
        why = "containers are run by a service"
        yield Finding(check="service", level="warn", what=seen.service_error, why=why, fix="`fairlead up`")


def _node(seen: Seen) -> Iterator[Finding]:
    node = next((node for node in seen.nodes if node.name == seen.node), None)
    if node is None or node.state != "ready":
        what = f"node {seen.node} is {node.state}: {node.reason}" if node else f"node {seen.node} has not registered"
        why = "the scheduler gives it no container"
        fix = "see the service's log, role kubelet"
        yield _late(seen, Finding(check="kubelet", level="fail", what=what, why=why, fix=fix))
        return
    yield Finding(check="kubelet", level="ok", what=f"node {node.name} is ready")
    yield from _plugins(seen, node)


def _plugins(seen: Seen, node: NodeView) -> Iterator[Finding]:
    """Judge every resource of a device plugin by how many of its devices are healthy."""
    every = sorted(name for name in {*node.capacity, *node.allocatable} if admission.is_extended(name))
    if seen.resource not in every and seen.found:
        missing = Finding(
            check="plugin",
            level="fail",
            what=f"no device plugin has registered {seen.resource}",
            why="the kubelet knows of no GPU to give",
            fix="see the service's log, role agent; it registers again by itself",
        )
        yield _late(seen, missing)
    for name in every:
        healthy = int(node.allocatable.get(name, "0"))
        total = max(healthy, int(node.capacity.get(name, "0")))
        if total and healthy == total:
            yield Finding(check="plugin", level="ok", what=f"{healthy} healthy {name} advertised")
            continue
        is_none = healthy == 0
        short = Finding(
            check="plugin",
            level="fail" if is_none else "warn",
            what=f"{healthy} of {total} {name} healthy",
            why=f"no container that asks for {name} starts" if is_none else "the others are not given to containers",
            fix="`fairlead events` says why; a plugin that has ended must be started again, its log tells more",
        )
        yield _late(seen, short) if is_none else short


def _late(seen: Seen, finding: Finding) -> Finding:
    """Return what has not registered as a warning while the service is starting, which is not failing."""
    if seen.age_s >= STARTING_S:
        return finding
    what = f"starting, the service has run for {seen.age_s:.0f} s: {finding.what} yet"
    return Finding(check=finding.check, level="warn", what=what, why=finding.why, fix="ask again in a few seconds")
