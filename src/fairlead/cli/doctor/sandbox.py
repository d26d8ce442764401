"""Looks at this machine's sandboxes, gVisor and Kata, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.model.container import isolation
from fairlead.node.sandbox import gvisor
from fairlead.node.sandbox import kata as nodekata
from fairlead.plan.sandbox import kata, nvproxy


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was looked at."""

    gvisor: nvproxy.GVisor | None = None
    """None: no handler, or `problem`."""
    problem: str = ""
    """Why the handler's program is not gVisor."""
    driver: str = ""
    """NVIDIA's; empty: there is none."""
    is_simulated: bool = False
    demanded: tuple[str, ...] = ()
    """Tenancies whose containers must be on gVisor."""
    kata: kata.Node = field(default_factory=kata.Node)


async def collect(
    program: str, *, driver: str, is_simulated: bool, demanded: Sequence[str] = (), root: Path = Path("/")
) -> Facts:
    """Ask the handler's program, and read Kata's files.

    Args: program: what the engine starts for gVisor; empty: it has no handler.
    """
    found, problem = None, ""
    if program:
        try:
            found = await gvisor.look(program)
        except errors.Unavailable as error:
            problem = error.message
    return Facts(
        gvisor=found,
        problem=problem,
        driver=driver,
        is_simulated=is_simulated,
        demanded=tuple(demanded),
        kata=await nodekata.look(root),
    )


def check(seen: Facts) -> Iterator[Finding]:
    """Yield a finding about gVisor where an engine has it or a tenancy demands it, and each problem of Kata."""
    yield from _gvisor(seen)
    found = list(kata.problems(seen.kata))
    for one in found:
        level = "fail" if one.is_fatal else "warn"
        yield Finding(check="sandbox", level=level, what=one.what, why=one.why, fix=one.fix)
    if seen.kata.handlers and not found:
        names = ", ".join(one.name for one in seen.kata.handlers)
        yield Finding(check="sandbox", level="ok", what=f"kubelet, containerd and Kata agree about {names}")


def _gvisor(seen: Facts) -> Iterator[Finding]:
    whom = f"containers of {', '.join(seen.demanded)} do not start" if seen.demanded else "no container runs on it"
    if seen.problem:
        yield Finding(check="sandbox", level="fail", what=seen.problem, why=whom, fix=gvisor.HINT)
        return
    if seen.gvisor is None:
        if seen.demanded:
            what = "the engine has no handler for gVisor, and tenancies demand it"
            yield Finding(check="sandbox", level="fail", what=what, why=whom, fix=gvisor.HINT)
        return
    if not seen.gvisor.joins:
        what = f"{seen.gvisor.program} knows no pods of several containers: an older fairlead wrote it, or another"
        fix = "repeat `fairlead runtime configure --engine podman --gvisor`, with the options that it had"
        yield Finding(check="sandbox", level="warn", what=what, why="such pods do not start on gVisor", fix=fix)
    refused = nvproxy.refusal(seen.gvisor, seen.driver)
    if refused is not None:
        why = "containers with GPUs are refused on gVisor; those without run"
        yield Finding(check="sandbox", level="warn", what=refused.message, why=why, fix=refused.hint or "")
    elif seen.gvisor.told and seen.driver and not seen.is_simulated and seen.gvisor.told != seen.driver:
        what = f"gVisor is given driver {seen.gvisor.told} by its options, and the node has {seen.driver}"
        fix = "`fairlead runtime configure --gvisor` without nvproxy-driver-version"
        yield Finding(check="sandbox", level="fail", what=what, why="calls are passed on by another ABI", fix=fix)
    else:
        what = f"gVisor {seen.gvisor.version} ({seen.gvisor.program})"
        why = isolation.LIMITS if seen.driver else ""
        yield Finding(check="sandbox", level="ok", what=what, why=why)
