"""NVIDIA's own generator as a peer: built once from its published Go module, pinned by version, and kept.

`go install` checks the module against Go's checksum database. Nothing of it is part of the product or of `make test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "1.20.1"
NAME = f"nvidia-ctk {VERSION}"
FOLDER = Path.home() / ".cache" / "fairlead" / "peers" / f"nvidia-ctk-{VERSION}"
PROGRAM = FOLDER / "nvidia-ctk"
_LIMIT_S = 1800


def build() -> Path | None:
    """Return the program, building it if need be; None: there is no Go here, or the build fails."""
    if PROGRAM.exists():
        return PROGRAM
    if shutil.which("go") is None or shutil.which("cc") is None:
        return None
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        env = {**os.environ, "GOBIN": name, "GOFLAGS": "-mod=mod"}  # noqa: TID251  a build needs the caller's caches
        module = f"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v{VERSION}"
        command = ("nice", "-n", "19", "go", "install", "-ldflags", "-s -w", module)
        done = subprocess.run(command, env=env, cwd=name, capture_output=True, timeout=_LIMIT_S, check=False)
        if done.returncode != 0:
            return None
        FOLDER.mkdir(exist_ok=True)
        (Path(name) / "nvidia-ctk").rename(PROGRAM)
    return PROGRAM


def arguments(program: Path, mode: str, root: Path, lists: list[Path]) -> list[str]:
    """Return the command line that describes a fake machine in one mode."""
    given = [f"--csv.file={path}" for path in lists]
    hook = "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook"
    return [str(program), "cdi", "generate", f"--mode={mode}", f"--driver-root={root}", hook, "--format=json", *given]
