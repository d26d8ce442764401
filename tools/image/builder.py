"""podman with a store of its own: nothing here shows up in the machine's images, and one folder less removes it all.

Build steps run in chroots with the machine's network: no container runtime, no cgroup and no registry is needed.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors
from tools.image import inputs

CACHE: Final = Path.home() / ".cache" / "fairlead" / "image"
_RUN: Final = Path("/run/fairlead-image")
_PIP: Final = inputs.ROOT / ".cache" / "uv" / "bin" / "python"
_CERTIFICATES: Final = "/run/fairlead-build/ca.crt"
_LONGEST_S: Final = 2400.0
"""A build takes one to three minutes; the gate's runs at the lowest priority beside a ring that leaves it little."""
_MOST_BYTES: Final = 3_000_000_000
"""What steps of earlier builds may take; the layers of one build are about 800 MB."""


def command(*arguments: str, cache: Path = CACHE) -> tuple[str, ...]:
    """Return a podman command line over the store in `cache`."""
    folders = (f"--root={cache / 'storage'}", f"--runroot={_RUN}", f"--tmpdir={_RUN / 'tmp'}")
    return ("podman", *folders, "--runtime=runc", *arguments)


def run(argv: Sequence[str], *, timeout_s: float = _LONGEST_S) -> str:
    """Run a program to its end and return what it printed; raises Unavailable with its last lines, or for its time."""
    if shutil.which(argv[0]) is None:
        hint = f"run tools/setup.sh, or install the package that has {argv[0]}"
        raise errors.Unavailable(f"there is no {argv[0]}", reason="ProgramMissing", hint=hint)
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=timeout_s, cwd=inputs.ROOT)
    except subprocess.TimeoutExpired as error:
        message = f"{argv[0]} did not end within {timeout_s:.0f} s"
        hint = "run it again on a quieter machine: what it has built is kept"
        raise errors.Unavailable(message, reason="BuildTimedOut", hint=hint) from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        message = f"{argv[0]} ended with {done.returncode}:\n{tail}"
        raise errors.Unavailable(message, reason="BuildFailed", hint="its last lines stand above")
    return done.stdout


def podman(*arguments: str, cache: Path = CACHE) -> str:
    """Run podman over the store in `cache`; raises as `run`."""
    return run(command(*arguments, cache=cache))


def exists(name: str, *, cache: Path = CACHE) -> bool:
    """Say whether the store has an image."""
    argv = command("image", "exists", name, cache=cache)
    return subprocess.run(argv, check=False, capture_output=True, timeout=60).returncode == 0


def build(*arguments: str, cache: Path = CACHE) -> str:
    """Run the Containerfile with this machine's way to packages, which stays out of the image; return the image's id.

    Args: arguments: what `podman build` is given beside the context.
    """
    with _mounts() as mounts:
        fixed = ("--isolation=chroot", "--network=host", "--pull=never", "--layers", "--quiet", *mounts)
        return podman("build", *fixed, *arguments, str(inputs.ROOT), cache=cache).split()[-1]


def trim(cache: Path = CACHE) -> None:
    """Remove the steps of earlier builds once they take much room; the next build then starts over."""
    taken = run(("du", "--summarize", "--block-size=1", "--one-file-system", str(cache))).split()[0]
    if int(taken) > _MOST_BYTES:
        podman("image", "prune", "--force", cache=cache)


def remove(cache: Path = CACHE) -> None:
    """Remove the store, and only it: `podman system reset` would take the machine's container networks along."""
    if cache.exists():
        podman("rmi", "--all", "--force", cache=cache)
        shutil.rmtree(cache)


@contextlib.contextmanager
def _mounts() -> Iterator[tuple[str, ...]]:
    """Yield mounts that bring pip's settings of this machine, in files and variables, into the build steps."""
    known = _pip_settings()
    authority = known.pop("cert", os.environ.get("SSL_CERT_FILE", ""))
    folders = [one for one in known.get("find-links", "").split() if one.startswith("/")]
    mounts = [f"--volume={one}:{one}:ro" for one in folders if Path(one).is_dir()]
    if authority and Path(authority).is_file():
        known["cert"] = _CERTIFICATES
        mounts.append(f"--volume={Path(authority).resolve()}:{_CERTIFICATES}:ro")
    with tempfile.NamedTemporaryFile("w", prefix="fairlead-pip-", suffix=".conf") as file:
        file.write("[global]\n" + "".join(f"{key} = {value}\n" for key, value in known.items()))
        file.flush()
        yield (f"--volume={file.name}:/etc/pip.conf:ro", *mounts)


def _pip_settings() -> dict[str, str]:
    """Return pip's settings by key; a variable wins over a file, as in pip."""
    python = str(_PIP) if _PIP.exists() else sys.executable
    listed = run((python, "-m", "pip", "config", "list"), timeout_s=60)
    pairs = [line.partition("=") for line in listed.splitlines()]
    found = [(key, str(ast.literal_eval(value))) for key, _, value in pairs if key.startswith(("global.", ":env:."))]
    ordered = sorted(found, key=lambda pair: pair[0].startswith(":env:."))
    return {key.rpartition(".")[2]: value.replace("\n", " ") for key, value in ordered}
