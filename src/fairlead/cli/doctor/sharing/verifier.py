"""Collects and checks what the machine needs that reads passed-through GPUs between two tenants."""

from __future__ import annotations

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


def collect(config: settings.Settings) -> Facts:
    """Look at image, emulator and KVM; nothing where no image is named. The image is read whole."""
    chosen = config.lease
    if not chosen.verifier_image:
        return Facts()
    # Loaded here alone: most machines have no such image.
    from fairlead.node.vm import image

    try:
        digest, problem, fix = image.read(chosen.verifier_image).digest, "", ""
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
    """Yield what keeps the machine from starting, or that nothing does."""
    if not facts.is_wanted:
        return
    found = [
        (bool(facts.problem), facts.problem, facts.fix),
        (not facts.has_emulator, f"{facts.emulator} is not there, or not a program", "apt-get install qemu-system-x86"),
        (
            not facts.has_kvm,
            "/dev/kvm is not there",
            "modprobe kvm_intel or kvm_amd; turn VT-x or AMD-V on in the firmware",
        ),
    ]
    why = "no GPU that is passed through is free for the next tenant until its machine has read it"
    for is_wrong, what, fix in found:
        if is_wrong:
            yield Finding(check="verifier", level="fail", what=what, why=why, fix=fix)
    if not any(is_wrong for is_wrong, _, _ in found):
        what = f"GPUs that are passed through are read in a machine of the image {facts.image[:19]}"
        yield Finding(check="verifier", level="ok", what=what)
