"""Reads the host's secret on the port of a Service VM, and writes signs of life there: the guest's end.

Source: Linux drivers/char/virtio_console.c: a port is a character device that blocks until the host has something.
"""

from __future__ import annotations

import os
from typing import Final

from fairlead import errors
from fairlead.silicon.fabric import address
from fairlead.silicon.fabric.address import Address
from fairlead.wire.fairlead import servicevm

BEAT_S: Final = 5.0
"""Between two signs of life."""
_ANY: Final = 4294967295


class MachinePort:
    """One port, open."""

    def __init__(self, path: str) -> None:
        """Open it. Raises: Unavailable (`ServiceVMPort`)."""
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError) as error:
            raise self._failed(error) from error
        self._beats = 0

    def wait_hello(self) -> tuple[Address, bytes]:
        """Return where to listen and the secret, once the host has said them; blocking, for as long as that takes.

        Raises: Unavailable (`ServiceVMPort`): the host closed it.   ProtocolError: it says something else.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                part = os.read(self._handle, 1)
            except OSError as error:
                raise self._failed(error) from error
            if not part:
                raise self._failed(EOFError("the host closed it"))
            line += part
            if len(line) > servicevm.LONGEST:
                message = f"the host says more than {servicevm.LONGEST} bytes without an end"
                raise errors.ProtocolError(message, reason=servicevm.MALFORMED)
        hello = servicevm.parse_hello(bytes(line[:-1]))
        return address.parse(f"{_ANY}:{hello.port}"), bytes.fromhex(hello.secret)

    def beat(self) -> None:
        """Say that this process lives; blocking. Raises: Unavailable (`ServiceVMPort`)."""
        line = servicevm.emit(servicevm.Beat(beat=self._beats))
        self._beats += 1
        try:
            while line:
                line = line[os.write(self._handle, line) :]
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> errors.Unavailable:
        why = getattr(error, "strerror", None) or str(error)
        hint = "in a Service VM it is /dev/virtio-ports/org.fairlead.report"
        message = f"the machine's port {self._path!r} cannot be used: {why.lower()}"
        return errors.Unavailable(message, reason="ServiceVMPort", hint=hint)
