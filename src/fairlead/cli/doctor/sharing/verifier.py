"""Collects and checks what machines of a node's own need: that which reads passed-through GPUs, and the Service VM."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.frozen import frozen


@frozen
class Facts:
    """What was found."""

    is_wanted: bool = False
    image: str = ""
    """Digest of the image; empty: it cannot be used."""
    problem: str = ""
    """Why it cannot."""
    fix: str = ""
    emulator: str = ""
    has_emulator: bool = True
    has_kvm: bool = True
    has_vsock: bool = True


def collect(config: settings.Settings) -> Facts:
    """Look at what the verifier's machine needs; nothing where no image is named. The image is read whole."""
    return _look(config, config.lease.verifier_image)


def collect_service(config: settings.Settings) -> Facts:
    """Look at what a Service VM of our own needs; likewise."""
    found = _look(config, config.fabric.vm_image)
    return dataclasses.replace(found, has_vsock=_is_device(config.silicon.root / "dev/vhost-vsock"))


def _look(config: settings.Settings, reference: str) -> Facts:
    if not reference:
        return Facts()
    chosen = config.lease
    # Loaded here alone: most machines have no such image.
    from fairlead.node.vm import image

    try:
        digest, problem, fix = image.read(reference).digest, "", ""
    except errors.FairleadError as error:
        digest, problem, fix = "", error.message, error.hint or ""
    return Facts(
        is_wanted=True,
        image=digest,
        problem=problem,
        fix=fix,
        emulator=chosen.verifier_emulator,
        has_emulator=os.access(chosen.verifier_emulator, os.X_OK),
        has_kvm=_is_device(config.silicon.root / "dev/kvm"),
    )


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps the verifier's machine from starting, or that nothing does."""
    why = "no GPU that is passed through is free for the next tenant until its machine has read it"
    good = f"GPUs that are passed through are read in a machine of the image {facts.image[:19]}"
    yield from _check(facts, "verifier", why, good)


def check_service(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps the Service VM from starting, or that nothing does."""
    why = "no slot of several GPUs is given away: nothing switches NVLink"
    good = f"`fairlead fabric machine` can run a Service VM of the image {facts.image[:19]}"
    yield from _check(facts, "fabric", why, good)


def _check(facts: Facts, check: str, why: str, good: str) -> Iterator[Finding]:
    if not facts.is_wanted:
        return
    found = [
        (bool(facts.problem), facts.problem, facts.fix),
        (
            not facts.has_emulator,
            f"{facts.emulator} is not there, or not a program",
            "apt-get install qemu-system-x86; in the chart agent.verifier or fabric.machine names the nodes' own",
        ),
        (not facts.has_vsock, "/dev/vhost-vsock is not there", "modprobe vhost_vsock"),
        (
            not facts.has_kvm,
            "/dev/kvm is not there",
            "modprobe kvm_intel or kvm_amd; turn VT-x or AMD-V on in the firmware",
        ),
    ]
    for is_wrong, what, fix in found:
        if is_wrong:
            yield Finding(check=check, level="fail", what=what, why=why, fix=fix)
    if not any(is_wrong for is_wrong, _, _ in found):
        yield Finding(check=check, level="ok", what=good)
