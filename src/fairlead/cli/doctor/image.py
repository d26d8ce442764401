"""`fairlead doctor --image`: compares what an image needs of a driver with the drivers present, before any start.

What the image sets is asked of this machine's engine, without a pull; the drivers are those of the running service, of
the cluster that is meant, or of this machine's hardware where no service runs. The verdicts are
`plan.cdi.requirement`'s, in the words with which the runtime shim and the embedded kubelet refuse a start: a message,
and which side to change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fairlead import errors
from fairlead.cli.core import connection
from fairlead.cli.core.invocation import Invocation
from fairlead.cli.doctor.finding import Finding
from fairlead.model.container import visibledevices
from fairlead.model.gpu import GPU, Driver, Vendor
from fairlead.plan.cdi import capability, requirement
from fairlead.serve.backend.hardware import GPUListing
from fairlead.settings import Settings

_CUDA = "CUDA_VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was looked at."""

    image: str
    env: Mapping[str, str]
    """What the image sets for its containers."""
    hosts: tuple[requirement.Facts, ...]
    """One for each NVIDIA driver version that answered and each kind of GPU."""


def collect(call: Invocation, image: str) -> Seen:
    """Ask the engine for the image, and the service or the silicon for the drivers.

    Raises: NotFound (`ImageNotFound`): not on this machine.   Unavailable: no engine, or hardware that does not answer.
    """
    config = call.settings()
    env = asyncio.run(_environment(config, image))
    try:
        with connection.opened(call) as client:
            found = client.call("GET", "/v1/gpus", GPUListing)
        gpus, drivers = tuple(view.gpu for view in found.gpus), found.drivers
    except (errors.Unavailable, errors.ProtocolError):
        gpus, drivers = asyncio.run(_scan(config))
    return Seen(image=image, env=env, hosts=facts(drivers, gpus))


async def _environment(config: Settings, image: str) -> Mapping[str, str]:
    # The engine is imported here: a doctor who is not asked about an image does not pay for it.
    from fairlead.engine import machine as engines

    return await engines.open_engine(config.engine).environment(image)


async def _scan(config: Settings) -> tuple[tuple[GPU, ...], tuple[Driver, ...]]:
    from fairlead.silicon import machine

    silicon = await asyncio.to_thread(machine.open_silicon, config.silicon, config.state.folder / "silicon")
    try:
        inventory = await silicon.scan()
    finally:
        await silicon.close()
    return inventory.gpus, inventory.drivers


def facts(drivers: Iterable[Driver], gpus: Iterable[GPU]) -> tuple[requirement.Facts, ...]:
    """Return what requirements are held to: each driver version with each kind of GPU, a kind under its first name."""
    kinds: dict[tuple[str, str], str] = {}
    for gpu in gpus:
        if gpu.vendor is Vendor.NVIDIA:
            kinds.setdefault((_dotted(gpu.compute_capability), gpu.brand or ""), gpu.name)
    found = {driver.version: driver for driver in drivers if driver.vendor is Vendor.NVIDIA}
    return tuple(
        requirement.Facts(driver=version, cuda=_dotted(driver.cuda_version), arch=arch, brand=brand, gpu=name)
        for version, driver in found.items()
        for (arch, brand), name in (kinds or {("", ""): ""}).items()
    )


def _dotted(pair: tuple[int, int] | None) -> str:
    return "" if pair is None else f"{pair[0]}.{pair[1]}"


def check(seen: Seen) -> Iterator[Finding]:
    """Yield findings: at least one for each driver, and one for each thing an image asks for that it will not get."""
    if not seen.hosts:
        yield Finding(
            check="driver",
            level="fail",
            what="no NVIDIA driver answered: nothing to hold the image to",
            why="an image for CUDA runs on no other",
            fix="`fairlead doctor` says what is missing",
        )
    # Kinds of GPU that do not matter to the image would say the same again.
    yield from dict.fromkeys(item for host in seen.hosts for item in _requirements(seen, host))
    yield from _capabilities(seen)
    if visibledevices.VARIABLE in seen.env:
        what = f"{seen.image} sets {visibledevices.VARIABLE}={seen.env[visibledevices.VARIABLE]}: ignored"
        why = "devices come from the allocation only; the runtime shim can be configured otherwise (imageRequests)"
        yield Finding(check="request", level="ok", what=what, why=why)


def _requirements(seen: Seen, host: requirement.Facts) -> Iterator[Finding]:
    stated = requirement.stated(dict(seen.env))
    unmet = [(name, requirement.problem(name, text, host)) for name, text in stated]
    for name, found in unmet:
        if found is None:
            with_gpu = f" with {host.gpu}" if host.gpu and requirement.is_about_gpu(seen.env[name]) else ""
            what = f"{name}={seen.env[name]}: met by driver {host.driver}{with_gpu}, as far as is known"
            yield Finding(check="image", level="ok", what=what)
        else:
            why = f"{seen.image} is refused at its start on this driver"
            yield Finding(check="image", level="fail", what=found[0], why=why, fix=found[1])
    if not stated:
        yield _unstated(seen, host)


def _unstated(seen: Seen, host: requirement.Facts) -> Finding:
    """Judge an image that states nothing, or has it switched off, by the CUDA it says it was built with."""
    built = ".".join(seen.env.get(_CUDA, "").split(".")[:2])
    found = requirement.problem(_CUDA, f"cuda>={built}", host) if built else None
    if found is not None:
        what = f"{seen.image} is built with CUDA {built}, driver {host.driver} runs CUDA {host.cuda}"
        why = "it states no requirement, so it starts; programs that use newer features fail"
        return Finding(check="image", level="warn", what=what, why=why, fix=found[1])
    with_cuda = f", is built with CUDA {built}" if built else ""
    return Finding(check="image", level="ok", what=f"{seen.image} states no requirement{with_cuda}")


def _capabilities(seen: Seen) -> Iterator[Finding]:
    text = seen.env.get(capability.VARIABLE)
    if text is None:
        return
    parts, wrong = capability.parse_capabilities(text)
    if wrong:
        what = f"{capability.VARIABLE}={text}: {', '.join(wrong)} is none"
        fix = f"in the image: use {', '.join(capability.KNOWN)} or all"
        yield Finding(check="image", level="fail", what=what, why="the runtime shim refuses its start", fix=fix)
    else:
        shown = ", ".join(part for part in capability.KNOWN if part in parts)
        yield Finding(check="image", level="ok", what=f"asks for these parts of the driver: {shown}")
