"""Checks whether this node's engines start a runtime that reads devices from environment and mounts.

Those strategies say nothing to an engine itself: a container whose runtime does not read them starts without its GPUs,
and no error is reported. What the engines are configured with is in files; that a pod's RuntimeClass leads to the
handler cannot be seen from here, so what is missing is reported, not refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.plan.engineconfig.model import PROGRAM
from fairlead.plan.gpu.allocation import answer

FOLDERS: Final = (
    "etc/containerd",
    "etc/docker",
    "etc/crio",
    "etc/containers",
    "var/lib/rancher/k3s/agent/etc/containerd",
)
_SUFFIXES: Final = frozenset({".toml", ".conf", ".json", ".tmpl"})
_READERS: Final = (PROGRAM.encode(), b"nvidia-container-runtime")


def find_problem(options: answer.AllocateOptions, root: Path) -> errors.Unavailable | None:
    """Return why containers would start without their devices; None: they would not, or nothing can be seen.

    Args: root: where the node's file system is seen.
    """
    if options.strategies & answer.CDI or options.passes_device_specs:
        return None
    texts = [text for folder in FOLDERS for text in _texts(root / folder)]
    if not texts or any(reader in text for text in texts for reader in _READERS):
        return None
    chosen = ", ".join(sorted(strategy.value for strategy in options.strategies))
    message = f"devices are handed over by {chosen}, and no engine's files on this node name a runtime that reads them"
    hint = "run `fairlead runtime configure` on the node and give pods its RuntimeClass, or hand over by cdi-cri"
    return errors.Unavailable(message, reason="RuntimeReadsNothing", hint=hint)


def _texts(folder: Path) -> list[bytes]:
    try:
        return [path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    except OSError:
        return []
