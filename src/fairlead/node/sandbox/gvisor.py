"""Looks at gVisor as an engine's handler starts it on this node.

What is asked is the handler's own program, so that its options count: one that names a driver (simulated GPUs), or one
that takes any. Nothing is remembered: a service lives for months, and gVisor and the driver are updated under it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from fairlead import command, errors
from fairlead.model.container import sandboxfile
from fairlead.plan.sandbox import nvproxy

_ASK_S: Final = 20.0
_LARGEST: Final = 1 << 16
_SCRIPT: Final = b"#!"
HINT: Final = "install gVisor's runsc, then `fairlead runtime configure --engine podman --gvisor`"


def absent(why: str) -> errors.Unavailable:
    """Return the error where there is no gVisor."""
    return errors.Unavailable(f"isolation gvisor: {why}", reason="IsolationUnavailable", hint=HINT)


async def look(program: str) -> nvproxy.GVisor:
    """Ask a handler's program what it is.

    Raises: Unavailable (`IsolationUnavailable`): it cannot be started, or is not gVisor.
    """
    version = await _ask(program, "--version")
    word, _, rest = version.partition("\n")[0].partition(" version ")
    if word != "runsc":
        raise absent(f"{program} is not gVisor: it says {errors.readable(version[:80])!r} of itself")
    text = await asyncio.to_thread(_options, Path(program))
    told, is_trusting = nvproxy.parse_options(text)
    try:
        drivers = nvproxy.parse_drivers(await _ask(program, "nvproxy", "list-supported-drivers"))
    except errors.Unavailable:
        drivers = ()  # one of before 2024
    return nvproxy.GVisor(
        program=program,
        version=rest.strip(),
        drivers=drivers,
        told=told,
        is_trusting=is_trusting,
        joins=sandboxfile.JOINS in text,
    )


async def _ask(program: str, *words: str) -> str:
    try:
        done = await command.run((program, *words), env=command.base_env(), timeout_s=_ASK_S, largest=_LARGEST)
    except errors.Unavailable as error:
        raise absent(error.message) from error
    if done.code != 0:
        raise absent(f"{program} {' '.join(words)} ended with {done.code}: {done.last_line}")
    return done.stdout.decode(errors="replace")


def _options(program: Path) -> str:
    """Return the text of a script that starts runsc; empty: the program is runsc itself."""
    try:
        with program.open("rb") as file:
            text = file.read(_LARGEST)
    except OSError:
        return ""
    return text.decode(errors="replace") if text.startswith(_SCRIPT) else ""


async def refusal(program: str, *, driver: str) -> errors.FairleadError | None:
    """Return why no container can run on gVisor here; None: it can.

    Args: program: what the engine starts; empty: it has no handler of that name.
          driver: NVIDIA's, where the container has such GPUs; empty: it has none.
    """
    if not program:
        return absent("podman has no runtime of that name")
    try:
        found = await look(program)
    except errors.Unavailable as error:
        return error
    return nvproxy.refusal(found, driver) if driver else None
