"""Makes OCI bundles and runs them by raw runc and crun: through our shim and hook, or with the CDI edits alone."""

from __future__ import annotations

import functools
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fairlead_cdi
from fairlead.inject import launcher
from fairlead_cdi import oci
from tools.gpu import context as contexts

KIND: Final = "nvidia.com/gpu"
_IN_CRUN: Final = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"',
    "sh",
)
"""crun refuses a machine that has cgroup v1 with controllers on v2; away from the v2 mount it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One runtime, one way in."""

    context: contexts.Context
    runtime: str
    way: str
    """`shim` or `edits`."""

    @property
    def name(self) -> str:
        """How checks call it."""
        return f"{self.runtime}, {'our shim and hook' if self.way == 'shim' else 'CDI edits alone'}"

    @property
    def folder(self) -> Path:
        """Its launchers and bundles."""
        return self.context.folder / f"{self.runtime}-{self.way}"

    @property
    def _specs(self) -> Path:
        return self.context.folder / "cdi-tenant"

    def prepare(self) -> None:
        """Install the launchers with a policy of this check."""
        self.folder.mkdir(mode=0o755)
        if self.way != "shim":
            return
        (self.folder / "bin").mkdir(mode=0o755)
        policy = {
            "runtimes": [self.runtime],
            "specDirs": [str(self._specs)],
            "defaultKind": KIND,
            "imageRequests": "honour",
            "cache": str(self.folder / "run" / "cache.json"),
        }
        path = self.folder / "runtime.json"
        path.write_text(json.dumps(policy))
        path.chmod(0o644)
        launcher.install(self.folder / "bin", config=path)

    def bundle(
        self, name: str, root: Path, command: Sequence[str], *, device: str, env: Sequence[str] = (), **more: Any
    ) -> Path:
        """Write a bundle. Args: device: the CDI device's name, `0`.   more: keys of config.json to replace.

        Raises: CDIError: no spec has the device.
        """
        place = self.folder / name
        place.mkdir(mode=0o755)
        document = json.loads(_template(self.runtime))
        document["process"].update(terminal=False, args=list(command))
        document["process"]["env"] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *env]
        for part in document["process"]["capabilities"].values():
            part.append("CAP_MKNOD")
        document["root"] = {"path": str(root), "readonly": False}
        document.update(more)
        if self.way == "shim":
            document["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={device}")
        else:
            document = fairlead_cdi.scan([self._specs]).inject(document, [f"{KIND}={device}"])
        (place / "config.json").write_bytes(oci.encode_config(document))
        return place

    def run(self, bundle: Path, *, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a bundle to its end."""
        mine = f"fairlead-check-{os.getpid()}-{bundle.parent.name}-{bundle.name}"
        program = str(self.folder / "bin" / launcher.RUNTIME) if self.way == "shim" else self.runtime
        prefix = _IN_CRUN if self.runtime == "crun" and _is_hybrid() else ()
        try:
            return contexts.run((*prefix, program, "run", "--bundle", str(bundle), mine), timeout_s=timeout_s)
        finally:
            contexts.run((*prefix, self.runtime, "delete", "--force", mine), timeout_s=15)


def _is_hybrid() -> bool:
    return Path("/sys/fs/cgroup/unified").exists()


@functools.cache
def _template(runtime: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fairlead-check-spec-") as folder:
        subprocess.run(
            (runtime, "spec"), cwd=folder, check=True, capture_output=True, env={"PATH": contexts.PATH}, timeout=10
        )
        return (Path(folder) / "config.json").read_text()


def is_device(path: Path) -> bool:
    """Return whether a path is a character device."""
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False
