"""The Debian package, built with dpkg-deb from the installed tree.

It is of one Python release, as the libraries in it are compiled for one: build it on the Debian it is for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from fairlead import __version__
from fairlead.cli.process import service
from tools.package import tree

_PYTHON: Final = "/usr/bin/python3"
_MARK: Final = "# Part of the package fairlead; `systemctl edit fairlead` changes it."
_CONTROL: Final = """\
Package: fairlead
Version: {version}
Architecture: {architecture}
Maintainer: The Fairlead authors
Installed-Size: {size}
Depends: python3 (>= {python}~), python3 (<< {next}~), podman (>= 4.3), tar
Recommends: netavark, aardvark-dns, busybox-static
Section: admin
Priority: optional
Description: GPUs from silicon into tenants' containers
 Finds GPUs, advertises them, places work on them, injects them into containers,
 isolates them with the kernel's own rules, reads those rules back, and explains
 every step. Works without a GPU on simulated silicon, and says so.
"""
_POSTINST: Final = """\
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""
_PRERM: Final = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  fairlead service uninstall || true # a unit of /etc that starts what is now taken away
  systemctl disable --now fairlead.service
fi
"""
_POSTRM: Final = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


def build(folder: Path) -> Path:
    """Build the package into a folder and return it."""
    stage = tree.ROOT / "build/deb"
    shutil.rmtree(stage, ignore_errors=True)
    tree.install(Path("/usr"), stage=stage, python=_PYTHON)
    unit = stage / "usr/lib/systemd/system/fairlead.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(service.unit_text(["/usr/bin/fairlead", "up"], mark=_MARK))
    copyright_file = stage / "usr/share/doc/fairlead/copyright"
    copyright_file.parent.mkdir(parents=True)
    shutil.copyfile(tree.ROOT / "LICENSE", copyright_file)
    _control(stage)
    _modes(stage)
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", str(stage), str(folder)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return Path(printed.rpartition("in '")[2].rstrip("'.\n"))


def _control(stage: Path) -> None:
    release = _printed(_PYTHON, "-c", "import sys; print(*sys.version_info[:2])").split()
    major, minor = (int(part) for part in release)
    size = sum(path.lstat().st_size for path in stage.rglob("*") if path.is_file())
    text = _CONTROL.format(
        version=__version__,
        architecture=_printed("dpkg", "--print-architecture").strip(),
        size=size // 1024,
        python=f"{major}.{minor}",
        next=f"{major}.{minor + 1}",
    )
    folder = stage / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(text)
    for name, script in (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM)):
        (folder / name).write_text(script)


def _modes(stage: Path) -> None:
    """Give every file the mode that packages have, whatever umask and cache it came from."""
    for path in (stage, *stage.rglob("*")):
        if not path.is_symlink():
            is_run = path.is_dir() or path.stat().st_mode & 0o100 or path.parent.name == "DEBIAN"
            path.chmod(0o755 if is_run and path.name != "control" else 0o644)


def _printed(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
