"""Checks the facts of one machine from the bottom layer up, one pure function a layer.

What keeps a container from its GPUs is a failure; what leaves fewer of them, or is worked around, is a warning.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final

from fairlead.cli.doctor import certificate, gpu_checks, mailserver, sandbox, secret, specs, sshdoor, tenancy
from fairlead.cli.doctor.finding import Finding
from fairlead.cli.doctor.held import claims, lease, leftovers
from fairlead.cli.doctor.machine_facts import Seen
from fairlead.cli.doctor.planned import idling, reservations, workloads
from fairlead.cli.doctor.sharing import mps, passthrough, vgpu
from fairlead.plan.pod import admission
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.nodes.view import NodeView
from fairlead.serve.v1.status.view import STARTING_S

_CDI_WANTED: Final = (0, 5, 0)


def check(seen: Seen) -> Iterator[Finding]:
    """Yield findings from the bottom layer up; every check yields at least one."""
    yield from _silicon(seen)
    yield from gpu_checks.check(seen.gpus)
    yield from vgpu.check(seen.gpus)
    yield from mps.check(seen.mps, (view.gpu for view in seen.gpus.gpus), is_served=bool(seen.service))
    yield from passthrough.check(seen.passthrough)
    yield from lease.check(seen.lease)
    yield from claims.check(seen.claims)
    yield from secret.check(seen.secret)
    yield from sshdoor.check(seen.ssh)
    yield from mailserver.check(seen.mail)
    yield from certificate.check(seen.certificate, dt.datetime.now(dt.UTC))
    yield from tenancy.check(seen.tenancy)
    yield from tenancy.check_user_ids(seen.tenancy)
    yield from tenancy.check_mounts(seen.tenancy)
    yield from tenancy.check_inotify(seen.tenancy)
    yield from leftovers.check(seen.leftovers)
    yield from _driver(seen)
    yield from _kernel(seen)
    yield from _disk(seen)
    yield from _engine(seen)
    yield from _configured(seen)
    yield from sandbox.check(seen.sandbox)
    yield from specs.check(seen.cdi, expects=bool(seen.service and seen.gpus.gpus))
    yield from _service(seen)
    if seen.service:
        yield from _node(seen)
        yield from _containers(seen)
        yield from workloads.check(seen.workloads)
        yield from reservations.check(seen.reservations)
        yield from idling.check(seen.idling)


def _silicon(seen: Seen) -> Iterator[Finding]:
    found = len(seen.gpus.gpus)
    if seen.silicon_error:
        yield Finding(
            check="silicon",
            level="fail",
            what=seen.silicon_error,
            why="without an answer of the driver no GPU can be given to anyone",
            fix="see whether `nvidia-smi` answers; the driver's own log is in `dmesg`",
        )
    elif not found and not seen.gpus.unreadable and (passed := _passed_through(seen.passthrough)):
        yield Finding(check="silicon", level="ok", what=f"no GPU has a driver here: {passed}")
    elif not found and seen.server is not None:
        why, fix = "the service that has them does not answer", "see the finding on `service`"
        yield Finding(check="silicon", level="warn", what="GPUs were not looked at", why=why, fix=fix)
    elif not found and not seen.gpus.unreadable:
        fix = "install the vendor's driver, or try all of it with `fairlead up --simulate h100x8`"
        if seen.was_simulated:
            fix = "the last service here simulated its GPUs: `fairlead up --simulate PROFILE` has them back"
        why = "there is nothing to give to containers"
        yield Finding(check="silicon", level="fail", what="no GPU answered", why=why, fix=fix)
    else:
        simulated = f", SIMULATED by profile {seen.profile}" if seen.profile else ""
        yield Finding(check="silicon", level="ok", what=f"{found} GPUs answered{simulated}")


def _passed_through(facts: passthrough.Facts) -> str:
    """Return why no GPU of this machine needs a driver, where machines are to have them; empty: none does."""
    bound, known = sum(one.is_bound_to_vfio for one in facts.snapshot.gpus), len(facts.snapshot.gpus)
    if bound or (known and facts.is_wanted):
        return f"{bound} of {known} are bound to VFIO, for virtual machines"
    return ""


def _driver(seen: Seen) -> Iterator[Finding]:
    for text in seen.driver_problems:
        why = "containers would miss a part of the driver"
        yield Finding(check="driver", level="warn", what=text, why=why, fix="as said there, then `fairlead doctor`")
    if not seen.driver_problems and seen.gpus.gpus:
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


def _history(kept: HistoryView | None) -> Iterator[Finding]:
    if kept is not None and kept.problem:
        why = "figures over time have a gap until it is over; nothing else depends on them"
        fix = "free some space and look at the service's log; the next sample is tried in ten seconds"
        what = f"nothing was kept at the last sample: {kept.problem}"
        if not kept.days:  # the file could not be opened when the service started
            fix = "free some space, or move what lies there away; then start the service again"
            what = f"nothing is kept: {kept.problem}"
        yield Finding(check="history", level="warn", what=what, why=why, fix=fix)
    if kept is not None and kept.set_aside:
        why = "what it held of figures over time is not shown; new ones are kept"
        fix = f"look at the disk's health; `rm {kept.set_aside}` once nobody needs it, then start the service again"
        yield Finding(check="history", level="warn", what=f"{kept.set_aside} was damaged", why=why, fix=fix)


def _disk(seen: Seen) -> Iterator[Finding]:
    for text in seen.disks:
        why = "containers, specs and traces cannot be recorded: nothing new starts"
        fix = "`df` says how full it is; nothing that is stored is lost"
        yield Finding(check="state", level="fail", what=text, why=why, fix=fix)
    if seen.database:
        why = "the service does not start without its records"
        fix = "`fairlead state check` reads every file; `fairlead state repair` sets damaged ones aside"
        yield Finding(check="state", level="fail", what=seen.database, why=why, fix=fix)
    for text in seen.open_folders:
        why = "other accounts of this machine can read, change or run what containers wrote and were given"
        fix = "start the service again, which closes what is root's; look at what another user owns before you take it"
        yield Finding(check="state", level="fail", what=text, why=why, fix=fix)
    yield from _history(seen.history)
    if not (seen.disks or seen.database or seen.open_folders):
        yield Finding(check="state", level="ok", what="state can be read and written")


def _engine(seen: Seen) -> Iterator[Finding]:
    engine, advice = seen.engine, seen.advice
    if engine.problem:
        why = "the engine starts containers and injects their devices"
        fix = engine.hint or advice.no_answer
        yield Finding(check="engine", level="fail", what=engine.problem, why=why, fix=fix)
        return
    what = f"{engine.name} {engine.version} with {engine.runtime}, reads CDI up to {engine.cdi_ceiling}"
    if _version(engine.cdi_ceiling) < _CDI_WANTED:
        why = "specs are written in CDI 0.5.0; an older reader would refuse them"
        yield Finding(check="engine", level="warn", what=what, why=why, fix=advice.too_old)
    else:
        yield Finding(check="engine", level="ok", what=what)
    for note in engine.notes:
        yield Finding(check="engine", level="warn", what=note, why="detected here and worked around")
    for name in seen.listing.broken:
        what, fix = advice.broken.format(name=name), advice.broken_fix.format(name=name)
        yield Finding(check="engine", level="warn", what=what, why=advice.broken_why, fix=fix)
    if seen.listing.problem:
        why = "without a list nobody knows which containers hold GPUs"
        yield Finding(check="engine", level="fail", what=seen.listing.problem, why=why, fix=advice.no_list)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _configured(seen: Seen) -> Iterator[Finding]:
    """Judge what `fairlead runtime configure` left, as `fairlead runtime check` does."""
    for (engine, config), verdict in seen.configured.items():
        for what in verdict.findings:
            yield Finding(
                check="runtime",
                level="fail",
                what=f"{engine} is not configured as it should be: {what}",
                why="containers of that engine start without their GPUs, or not at all",
                fix=f"fairlead runtime configure --engine {engine} --config {config}, with the options as before",
            )
        for what in verdict.notes:
            yield Finding(check="runtime", level="warn", what=what, why=f"what is in {config} has no effect on it")
        if not verdict.findings:
            yield Finding(check="runtime", level="ok", what=f"{engine} is configured ({config})")


def _service(seen: Seen) -> Iterator[Finding]:
    if seen.service:
        yield Finding(check="service", level="ok", what=seen.service)
        return
    why, fix, level = "containers are run by a service", "`fairlead up`", "warn"
    what = seen.service_error
    if seen.server is not None:
        pid, level = seen.server.pid, "fail"
        what += f"; process {pid} has its socket and is {seen.server.state or 'there'}"
        fix = (
            f"`kill -CONT {pid}`" if seen.server.is_stopped else f"its log says what it waits for; `kill {pid}` ends it"
        )
    yield Finding(check="service", level=level, what=what, why=why, fix=fix)


def _node(seen: Seen) -> Iterator[Finding]:
    yield from _kubelet(seen)
    node = next((node for node in seen.nodes if node.name == seen.node), None)
    if node is None or node.state != "ready":
        what = f"node {seen.node} is {node.state}: {node.reason}" if node else f"node {seen.node} has not registered"
        why = "the scheduler gives it no container"
        fix = "see the service's log, role kubelet"
        yield _late(seen, Finding(check="kubelet", level="fail", what=what, why=why, fix=fix))
        return
    yield Finding(check="kubelet", level="ok", what=f"node {node.name} is ready")
    yield from _plugins(seen, node)


def _kubelet(seen: Seen) -> Iterator[Finding]:
    found = seen.kubelet
    if found is None or not found.problem:
        return
    what, fix = (
        f"the kubelet does not answer: {found.problem}",
        "the service starts it again; its log says why it ended",
    )
    if found.peer is not None and found.peer.pid:
        what += f"; its process {found.peer.pid} is {found.peer.state}"
        fix = f"`kill -KILL {found.peer.pid}`: the service starts it again, and containers run on"
        fix = f"`kill -CONT {found.peer.pid}` if you stopped it, or {fix}" if found.peer.is_stopped else fix
    why = "no container is started, ended or given a device"
    yield _late(seen, Finding(check="kubelet", level="fail", what=what, why=why, fix=fix))


def _plugins(seen: Seen, node: NodeView) -> Iterator[Finding]:
    """Judge every resource of a device plugin by how many of its devices are healthy."""
    every = sorted(name for name in {*node.capacity, *node.allocatable} if admission.is_extended(name))
    offered = {gpu.resource for gpu in seen.gpus.gpus if gpu.resource} or _of_divided(seen, node) or {seen.resource}
    if not offered & set(every) and not seen.has_claims_door and (seen.gpus.gpus or seen.gpus.unreadable):
        missing = Finding(
            check="plugin",
            level="fail",
            what=f"no device plugin has registered {seen.resource}",
            why=seen.config_problem or "the kubelet knows of no GPU to give",
            fix="mend the file or the name that chooses it; it is read again by itself"
            if seen.config_problem
            else "see the service's log, role agent; it registers again by itself",
        )
        yield _late(seen, missing)
    for name in every:
        healthy = int(node.allocatable.get(name, "0"))
        total = max(healthy, int(node.capacity.get(name, "0")))
        if not total and name not in offered:
            continue  # a resource that the present configuration no longer offers
        if total and healthy == total:
            shares = [gpu for gpu in seen.gpus.gpus if gpu.sharing and gpu.resource == name]
            held = sum(len({one.device for one in gpu.holders}) for gpu in shares)
            by = f", shares of {len(shares)} GPUs by {shares[0].sharing}: {held} held" if shares else ""
            yield Finding(check="plugin", level="ok", what=f"{healthy} healthy {name} advertised{by}")
            continue
        is_none = healthy == 0
        short = Finding(
            check="plugin",
            level="fail" if is_none else "warn",
            what=f"{healthy} of {total} {name} healthy",
            why=f"no container that asks for {name} starts" if is_none else "the others are not given to containers",
            fix="`fairlead events` says why; a plugin that has ended must be started again, its log says more",
        )
        yield _late(seen, short) if is_none else short


def _of_divided(seen: Seen, node: NodeView) -> set[str]:
    """Return the resources of MIG devices by profile, where every GPU is divided: then none is offered whole."""
    if not all(one.gpu.mig_enabled for one in seen.gpus.gpus):
        return set()
    return {name for name in node.capacity if name.rpartition("/")[2].startswith("mig-") and node.capacity[name] != "0"}


def _containers(seen: Seen) -> Iterator[Finding]:
    if seen.rules is None:
        return
    for name, wrong in seen.rules.differing.items():
        why = "the kernel allows it more or less than it was given"
        fix = f"`fairlead isolate audit --repair {name}`"
        yield Finding(check="isolation", level="fail", what=f"{name}: {wrong}", why=why, fix=fix)
    for name, doubt in seen.rules.doubtful.items():
        why = "nobody can say whether it may open what is not its own"
        fix = f"`fairlead isolate audit {name}` says the same; end the container if you do not trust it"
        yield Finding(check="isolation", level="warn", what=f"{name} cannot be judged: {doubt}", why=why, fix=fix)
    if not seen.rules.differing and not seen.rules.doubtful:
        what = f"{seen.rules.judged} containers of this service may open what they were given, and nothing else"
        yield Finding(check="isolation", level="ok", what=what if seen.rules.judged else "no container runs")


def _late(seen: Seen, finding: Finding) -> Finding:
    """Return what has not registered as a warning while the service is starting, which is not failing."""
    if seen.age_s >= STARTING_S:
        return finding
    what = f"starting, the service has run for {seen.age_s:.0f} s: {finding.what} yet"
    return Finding(check=finding.check, level="warn", what=what, why=finding.why, fix="ask again in a few seconds")
