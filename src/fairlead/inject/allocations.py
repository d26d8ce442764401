"""Reads the kubelet's checkpoint for the shim: once, when a request makes it worth it, and only if root
alone wrote them.

What they mean is in `plan.shim.allocation`. A file that is not there is a node without a kubelet: no device was
given. One that cannot be read or believed is a problem, and nothing in it counts.
"""

from fairlead.inject import fastjson, policy
from fairlead.plan.shim import allocation


class KubeletCheckpoint(allocation.Allocations):
    """Of one file."""

    def __init__(self, path: str) -> None:
        """Take the checkpoint's path; empty: none is read."""
        self._path = path
        self._entries: list[allocation.Entry] | None = None

    def entries(self) -> list[allocation.Entry]:
        """Return what the file says; after a problem, nothing."""
        if self._entries is None:
            try:
                data = policy.read_trusted(self._path) if self._path else None
                self._entries = [] if data is None else allocation.parse(fastjson.decode(data))
            except ValueError as error:
                self.problem, self._entries = f"{self._path} {error}", []
        return self._entries
