"""Makes what a node's own virtual machines have in common: image, emulator and size, as the settings say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from fairlead.frozen import frozen
from fairlead.node.vm import image
from fairlead.wire.qemu.machine import Machine, Passed

_OURS: Final = "console=ttyS0 panic=-1 quiet"
"""What the kernel of each of them is told."""


@frozen
class Options:
    """How a machine is made."""

    image: str
    """FOLDER@sha256:HEX."""
    emulator: str
    firmware: str
    memory_mib: int
    processors: int


def read_image(options: Options) -> image.Image:
    """Return the image, once nobody else could change it, the emulator or its firmware; blocking.

    Raises: Invalid, NotFound, Denied (`VerifierImage…`): as `image.assert_ours` and `image.read`.
    """
    for path in filter(None, (options.emulator, options.firmware)):
        image.assert_ours(Path(path))
    return image.read(options.image)


def describe(
    options: Options,
    made: image.Image,
    ports: tuple[int, int],
    *,
    name: str,
    addresses: Iterable[str],
    with_iommufd: bool,
    words: Sequence[str] = (),
    cid: int | None = None,
) -> Machine:
    """Return a machine that gets functions. Args: ports: handles of QMP and report.   words: more for its kernel."""
    qmp, report = ports
    return Machine(
        name=name,
        emulator=options.emulator,
        firmware=options.firmware,
        kernel=made.kernel,
        initramfs=made.initramfs,
        command_line=" ".join(filter(None, (made.command_line, _OURS, *words))),
        memory_mib=options.memory_mib,
        processors=options.processors,
        qmp=qmp,
        report=report,
        functions=tuple(Passed(address=one) for one in addresses),
        with_iommufd=with_iommufd,
        cid=cid,
    )
