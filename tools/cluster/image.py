"""Container images made from files on this machine, as the archive `docker save` writes; no registry, no engine.

Format: Docker image specification 1.2, "combined image JSON + filesystem changeset": one layer, `manifest.json`, and
the configuration under its own digest. The same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fairlead import errors

BUSYBOX: Final = "docker.io/local/busybox:1"
PAUSE: Final = "docker.io/local/pause:1"
_FOLDERS: Final = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "run")


def write_busybox(
    path: Path, name: str = BUSYBOX, *, command: Sequence[str] = ("sh",), extra: Mapping[str, bytes] | None = None
) -> None:
    """Write an image with a static busybox under every name it answers to; raises Unavailable without one.

    Args:    extra: further files, as for `write`.
    """
    program = shutil.which("busybox")
    if program is None:
        raise errors.Unavailable("no busybox", reason="NoBusybox", hint="apt-get install busybox-static")
    applets = subprocess.run((program, "--list"), capture_output=True, text=True, check=True).stdout.split()
    links = {f"bin/{applet}": "/bin/busybox" for applet in applets if applet != "busybox"}
    files = {
        "bin/busybox": Path(program).read_bytes(),
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
        **(extra or {}),
    }
    write(path, name, files=files, links=links, command=command)


def write_pause(path: Path) -> None:
    """Write the image that holds a pod's namespaces."""
    write_busybox(path, PAUSE, command=("/bin/sleep", "2147483647"))


def write(
    path: Path, name: str, *, files: Mapping[str, bytes], links: Mapping[str, str], command: Sequence[str]
) -> None:
    """Write an archive with one image.

    Args:    name: repository and tag, as `docker.io/local/x:1`.   files: content by path; all may be executed.
             links: target by path.
    """
    layer = _layer(files, links)
    settings = {"Cmd": list(command), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"}
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for member, content in (
            (config_name, config),
            ("layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            _add(archive, member, content)


def _layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        for member, content in files.items():
            _add(archive, member, content)
        for member, target in links.items():
            entry = tarfile.TarInfo(member)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return output.getvalue()


def _add(archive: tarfile.TarFile, member: str, content: bytes) -> None:
    entry = tarfile.TarInfo(member)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))
