"""`fairlead vfio guest-report` and `image-digest`: what a verifier's machine runs, and what names its image."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Final

import click

from fairlead import command, errors
from fairlead.cli.core import options, plaintext
from fairlead.settings import Settings
from fairlead.wire.qemu.machine import REPORT_PORT

_COMMAND_LINE: Final = Path("proc/cmdline")
_PORTS: Final = Path("sys/class/virtio-ports")
_NONCE: Final = "fairlead.nonce="
_NO_PORT: Final = "GuestPortMissing"


@click.command("guest-report")
@click.option("--port", metavar="PATH", help=f"where to write it; -: print it; none: the virtio port {REPORT_PORT}")
@click.option("--nonce", metavar="TEXT", help=f"what names this start; none: {_NONCE} of the kernel's command line")
@options.settings_options("silicon", hidden=True)
def report_verb(config: Settings, /, *, port: str | None, nonce: str | None) -> None:
    """Report this machine's GPUs to the node that verifies them; run in a verifier's virtual machine.

    The GPUs are read through NVIDIA's driver, which must be loaded, and attested by `nvattest`, where that is there.
    It writes one line of JSON.
    """
    root = config.silicon.root
    found = nonce if nonce is not None else _find_nonce(root)
    if not found.isascii() or not found.isprintable() or not 0 < len(found) <= 96:
        raise errors.Invalid(f"no nonce: {errors.readable(found[:100])!r}", reason="GuestNonceInvalid")
    # Loaded here alone: the other verbs of the group need neither a driver's library nor reports.
    from fairlead.silicon.nvidia import attesting, guestreading
    from fairlead.wire.fairlead import guestreport

    report = guestreading.read_guest(None, found)
    if (program := command.find_program(attesting.PROGRAM)) is not None:
        report = asyncio.run(attesting.attest(report, str(program)))
    line = guestreport.emit(report)
    if port == "-":
        plaintext.echo(line.decode().rstrip())
        return
    _write(Path(port) if port is not None else _find_port(root), line)


def _find_nonce(root: Path) -> str:
    try:
        words = (root / _COMMAND_LINE).read_text().split()
    except OSError as error:
        message = f"{root / _COMMAND_LINE} cannot be read: {error.strerror}"
        raise errors.Unavailable(message, reason="GuestNonceInvalid", hint="give --nonce") from error
    found = [word.removeprefix(_NONCE) for word in words if word.startswith(_NONCE)]
    if not found:
        hint = f"the node that starts a verifier's machine passes {_NONCE}…; else give --nonce"
        raise errors.NotFound("this kernel's command line has no nonce", reason="GuestNonceInvalid", hint=hint)
    return found[-1]  # the node's words come after the image's


def _find_port(root: Path) -> Path:
    """Return the node of the port by its name in sysfs: a guest may be without udev, which makes the link."""
    for name in sorted((root / _PORTS).glob("*/name")):
        if name.read_text().strip() == REPORT_PORT:
            return root / "dev" / name.parent.name
    hint = "is this a verifier's machine, and are virtio_pci and virtio_console loaded? --port - prints it"
    raise errors.NotFound(f"this machine has no virtio port {REPORT_PORT}", reason=_NO_PORT, hint=hint)


def _write(path: Path, line: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise errors.Unavailable(f"{path} cannot be written: {error.strerror}", reason=_NO_PORT) from error
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            raise errors.Invalid(f"{path} is no device of a port", reason=_NO_PORT, hint="--port - prints it")
        os.set_blocking(descriptor, True)
        while line:
            line = line[os.write(descriptor, line) :]
    except OSError as error:
        raise errors.Unavailable(f"{path} cannot be written: {error.strerror}", reason=_NO_PORT) from error
    finally:
        os.close(descriptor)


@click.command("image-digest")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True))
def digest_verb(*, folder: Path) -> None:
    """Print the name of a verifier's image with its digest, as lease.verifier_image takes it."""
    from fairlead.node.vm import image

    plaintext.echo(f"{folder}@{image.digest_of(folder)}")
