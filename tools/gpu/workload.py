"""Compiles the CUDA program of this check, once, and makes root file systems that can run it.

A root has this machine's busybox, and the loader and libraries that the program and nvidia-smi are linked to; the
driver's own libraries are left out, since the container must get them from its CDI edits.
"""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path
from typing import Final

from tools.gpu import context as contexts

_LINKED: Final = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)")
_OF_DRIVER: Final = re.compile(r"/lib(cuda|nvidia)[^/]*$")
_APPLETS: Final = ("sh", "cat", "ls", "mknod", "true", "sleep", "mkdir", "env")


def build(context: contexts.Context) -> Path | None:
    """Return the compiled program; None: no driver, no nvcc, or it does not compile (see `build_problem`)."""
    target = context.folder / "workload"
    if target.exists():
        return target
    if context.simulate or not context.nvcc or _log(context).exists():
        return None
    source = Path(__file__).with_name("workload.cu")
    argv = (context.nvcc, "-O2", "-cudart", "static", "-o", str(target), str(source))
    done = contexts.run(argv, timeout_s=60)
    _log(context).write_text(done.stdout + done.stderr)
    return target if done.returncode == 0 else None


def build_problem(context: contexts.Context) -> str:
    """Return why there is no program."""
    if context.simulate:
        return "no driver answers behind simulated nodes, so no CUDA program was run"
    if not context.nvcc:
        return "nvcc is not on this machine, so no CUDA program was run"
    said = _log(context).read_text().strip()
    return f"nvcc did not compile the program: {said[-400:]}"


def _log(context: contexts.Context) -> Path:
    """Return where the compiler's words are kept: it is called once."""
    return context.folder / "nvcc.log"


def proof(context: contexts.Context) -> tuple[tuple[str, ...], str]:
    """Return a command that works on a container's GPU, and what it says where it does."""
    return (("workload", "check"), "right 1048576") if build(context) else (("nvidia-smi", "-L"), "GPU 0")


def busy(context: contexts.Context, seconds: int) -> tuple[str, ...]:
    """Return a command that keeps a container's GPU busy; where no CUDA program is, one that keeps it."""
    return ("workload", "burn", str(seconds)) if build(context) else ("sleep", str(seconds))


def make_root(context: contexts.Context, folder: Path) -> Path:
    """Make a root file system. Raises: OSError: busybox is not on this machine."""
    for part in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr/bin", "usr/lib64"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    busybox = contexts.find("busybox", {})
    if not busybox:
        raise FileNotFoundError("busybox is not on this machine")
    shutil.copy(busybox, folder / "bin/busybox")
    for name in _APPLETS:
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    programs = [path for path in (busybox, context.smi) if path]
    if (workload := build(context)) is not None:
        shutil.copy(workload, folder / "bin/workload")
        programs.append(str(workload))
    for program in programs:
        for library in linked(program):
            target = folder / library.lstrip("/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, target)
    return folder


def linked(program: str) -> list[str]:
    """Return the libraries that a program is linked to, but for the driver's."""
    if not stat.S_ISREG(Path(program).stat().st_mode):
        return []
    done = contexts.run(("ldd", program), timeout_s=10)
    return [path for path in _LINKED.findall(done.stdout) if not _OF_DRIVER.search(path)]
