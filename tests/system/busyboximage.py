"""Makes an image of busybox from nothing, for tests that may not pull one."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def imported(folder: Path, applets: Sequence[str], *, changes: Sequence[str] = ()) -> Iterator[str]:
    """Import an image with these applets and yield its name; it is removed at the end.

    Args:   folder: empty.   changes: instructions of a Containerfile, `CMD …`, that the image is made with.
    """
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc"):
        (folder / "root" / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", folder / "root/bin/busybox")
    for applet in applets:
        (folder / "root/bin" / applet).symlink_to("busybox")
    with tarfile.open(folder / "root.tar", "w") as archive:
        archive.add(folder / "root", ".")
    name = f"localhost/fairlead-test/{secrets.token_hex(4)}:1"
    options = [f"--change={change}" for change in changes]
    subprocess.run(["podman", "import", "-q", *options, folder / "root.tar", name], check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "rmi", name], check=True, capture_output=True)
