"""Names the files in a container's bundle by which the engine tells the handler of gVisor about its sandbox.

A bundle is podman's, and root's alone: no image and no tenant can write there, as they can write annotations.
"""

from __future__ import annotations

from typing import Final

JOINS: Final = "fairlead-sandbox"
"""Has the id of the container whose sandbox is joined."""
PASSES: Final = "fairlead-nvproxy"
"""A container that joins later has GPUs, so the sandbox passes calls on to NVIDIA's driver."""
