"""Lays the check's own folders over the machine's, in a mount namespace that `tools/gpu/check` has made.

Engines read CDI specs from /var/run/cdi and keep images in /var/lib/containers; programs are looked for on a fixed
PATH. Inside the namespace these are folders of the check, so the machine's own stay as they are. Programs that the
machine lacks come from the pack: its folder lies over /usr/local/bin, and a cache of the linker's that knows its
libraries over the machine's. Outside a namespace of its own the check touches nothing and says so.
Source: mount_namespaces(7), ld.so(8), the kernel's overlayfs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

SAID: Final[dict[str, str]] = {}
"""What was done, for the report."""
_OWN: Final = "GPU_CHECK_STAGE"
"""Set by tools/gpu/check inside its namespace: the folder of the pack's programs, or `none`."""
_OVER: Final = ("/var/run/cdi", "/var/lib/containers", "/run/containers")
_OVER_IF_THERE: Final = ("/etc/cdi",)
_BIN: Final = Path("/usr/local/bin")
_ENGINE_FILES: Final = Path("/etc/containers")
_made: Final[list[Path]] = []


def set_up(work: Path) -> None:
    """Lay the folders over the machine's; nothing where there is no namespace for it."""
    pack = os.environ.get(_OWN, "")
    if not pack or os.geteuid() != 0:
        SAID["tools"] = "this machine's own; no namespace of mounts could be had"
        return
    for place in (*_OVER, *(one for one in _OVER_IF_THERE if Path(one).exists())):
        _bind(work / "stage" / place.strip("/").replace("/", "-"), Path(place))
    if pack != "none":
        _lay_programs(Path(pack), work)


def _bind(source: Path, place: Path) -> None:
    """Lay a folder over a place; where that cannot be, say so: the parts that need it will show what they miss."""
    source.mkdir(parents=True, exist_ok=True)
    try:
        _make(place)
        subprocess.run(("mount", "--bind", source, place), check=True, capture_output=True, text=True)
    except OSError as error:
        SAID[f"not laid over {place}"] = str(error.strerror)
    except subprocess.CalledProcessError as error:
        SAID[f"not laid over {place}"] = error.stderr.strip()


def _make(place: Path) -> None:
    """Make a folder to mount on, and remember to take it away again."""
    missing = [part for part in (place, *place.parents) if not part.exists()]
    place.mkdir(parents=True, exist_ok=True)
    _made.extend(missing)


def _lay_programs(pack: Path, work: Path) -> None:
    """Put the programs that this machine lacks on its PATH, with their libraries."""
    chosen = work / "stage/bin"
    chosen.mkdir(parents=True)
    lacking = [one for one in sorted((pack / "bin").iterdir()) if shutil.which(one.name) is None]
    for program in lacking:
        (chosen / program.name).symlink_to(program)
    if not lacking:
        return
    layers = f"lowerdir={chosen}:{_BIN}"
    laid = subprocess.run(("mount", "-t", "overlay", "-o", layers, "overlay", _BIN), capture_output=True, check=False)
    if laid.returncode:
        SAID["tools"] = "this machine's own; the pack's could not be laid over /usr/local/bin"
        return
    cache, conf = work / "stage/ld.so.cache", work / "stage/ld.so.conf"
    own = Path("/etc/ld.so.conf")
    conf.write_text((own.read_text() if own.exists() else "") + f"\n{pack / 'lib'}\n")
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin") or "ldconfig"
    subprocess.run((ldconfig, "-X", "-f", conf, "-C", cache), check=True, capture_output=True)
    if Path("/etc/ld.so.cache").exists():
        subprocess.run(("mount", "--bind", cache, "/etc/ld.so.cache"), check=True)
    if not (_ENGINE_FILES / "policy.json").exists():
        _bind(pack / "etc/containers", _ENGINE_FILES)
    SAID["tools"] = "of the pack: " + ", ".join(one.name for one in lacking)


def take_down() -> None:
    """Take away what was laid, and the folders that were made to lay it on: they are on the machine's disk."""
    if os.environ.get(_OWN):
        for place in (*_OVER, *_OVER_IF_THERE, str(_ENGINE_FILES), str(_BIN), "/etc/ld.so.cache"):
            subprocess.run(("umount", "-l", place), capture_output=True, check=False)
    for folder in sorted(_made, key=lambda path: -len(path.parts)):
        try:
            folder.rmdir()
        except OSError:
            continue
