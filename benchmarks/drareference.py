"""The reference allocator as a peer: a small program of ours, built once from the published Go module, and kept.

Nothing of it is part of the product or of `make test`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VERSION = "0.37.2"
NAME = f"k8s.io/dynamic-resource-allocation {VERSION}"
SOURCES = Path(__file__).parent / "reference" / "dra"
_DIGEST = hashlib.sha256((SOURCES / "main.go").read_bytes()).hexdigest()[:8]
PROGRAM = Path.home() / ".cache" / "fairlead" / "peers" / f"dra-allocator-{VERSION}-{_DIGEST}"
"""Built again where its source has changed."""
_LIMIT_S = 1800


def build() -> Path | None:
    """Return the program, building it if need be; None: there is no Go here, or the build fails."""
    if PROGRAM.exists():
        return PROGRAM
    if shutil.which("go") is None:
        return None
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PROGRAM.parent) as name:
        made = Path(name) / PROGRAM.name
        env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false"}  # noqa: TID251  a build needs the caller's caches
        command = ("nice", "-n", "19", "go", "build", "-ldflags", "-s -w", "-o", str(made), ".")
        done = subprocess.run(command, env=env, cwd=SOURCES, capture_output=True, timeout=_LIMIT_S, check=False)
        if done.returncode != 0:
            return None
        made.rename(PROGRAM)
    return PROGRAM


def answers(program: Path, worlds: Sequence[dict[str, Any]], *, limit_s: int = 1) -> list[dict[str, Any]]:
    """Return what the reference answers, with its time in `micros`; `limit_s` ends one search."""
    text = "".join(f"{json.dumps(world)}\n" for world in worlds)
    done = subprocess.run((str(program), str(limit_s)), input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
