"""Reads the kubelet's checkpoint for the shim: once, when a container asks for devices, and only if root alone can have
written it.

`plan.shim.allocation` interprets the entries. A file that is not there is a node without a kubelet: no device was
given. One that cannot be read or believed is a problem, and nothing in it counts.
"""

from fairlead.inject import fastjson, policy
from fairlead.plan.shim import allocation


class KubeletCheckpoint(allocation.Allocations):
    """Reads the allocations of one checkpoint file on first use."""

    def __init__(self, path: str) -> None:
        """Take the checkpoint's path; empty: none is read."""
        self._path = path
        self._entries: list[allocation.Entry] | None = None

    def entries(self) -> list[allocation.Entry]:
        """Return the entries of the file; none after a problem, which `problem` keeps."""
        if self._entries is None:
            try:
                data = policy.read_trusted(self._path) if self._path else None
                self._entries = [] if data is None else allocation.parse(fastjson.decode(data))
            except ValueError as error:
                self.problem, self._entries = f"{self._path} {error}", []
        return self._entries
