"""The image as one file, built when the tree has changed since.

The Containerfile does the work (`builder`), over a base made from packages (`base`). The result is an OCI archive with
compressed layers that containerd imports under its full name and that `podman load` and `docker load` read too. Times
in it are those of SOURCE_DATE_EPOCH, else 1970: the same tree and the same packages give the same image.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tools.image import base, builder, inputs

FOLDER: Final = inputs.ROOT / "build"
REPOSITORY: Final = "fairlead/fairlead"
_CONTAINERD_NAME: Final = "io.containerd.image.name"  # containerd: core/images, AnnotationImageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in a file."""

    name: str
    """As in pods: `fairlead/fairlead:0.1.0`."""
    id: str
    """Digest of its configuration, hexadecimal."""
    fingerprint: str
    """Of what it was made from."""
    packed_bytes: int
    """All layers, compressed."""

    @property
    def path(self) -> Path:
        """The archive."""
        return FOLDER / f"{self.name.rpartition('/')[2].replace(':', '-')}.tar"


def full_name(name: str) -> str:
    """Return what container runtimes call an image without a host: the one they would ask by default comes first."""
    return f"docker.io/{name}"


def current() -> Image | None:
    """Return the image made from the tree as it is; None: not built, or the tree has changed."""
    try:
        one = Image(**json.loads(_record().read_text()))
    except FileNotFoundError:
        return None
    return one if one.fingerprint == inputs.fingerprint() and one.path.exists() else None


def ensure_image(
    *, cache: Path = builder.CACHE, fresh: bool = False, say: Callable[[str], None] = lambda _: None
) -> Image:
    """Return the tree's image, after building it where needed (seconds; minutes the first time).

    Args:    fresh: take Debian's newest packages and use no earlier step.
    Raises:  Unavailable: a program is missing, or a step failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not fresh and (one := current()) is not None:
            return one
        begun = time.monotonic()
        say("building the image")
        built = _build(cache, fresh=fresh, say=say)
        say(f"built {built.name} in {time.monotonic() - begun:.0f} s: {built.packed_bytes / 1e6:.1f} MB, {built.path}")
        return built


def _build(cache: Path, *, fresh: bool, say: Callable[[str], None]) -> Image:
    fingerprint, name = inputs.fingerprint(), f"{REPOSITORY}:{inputs.version()}"
    arguments = (
        f"--build-arg=BASE={base.ensure(cache=cache, fresh=fresh)}",
        f"--build-arg=VERSION={inputs.version()}",
        f"--timestamp={os.environ.get('SOURCE_DATE_EPOCH', '0')}",
    )
    say("base is there")
    options = (f"--tag={full_name(name)}", *(["--no-cache"] if fresh else []))
    identity = builder.build(*arguments, *options, cache=cache)
    if inputs.fingerprint() != fingerprint:
        fingerprint = "the tree changed while the image was built"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        saved, packed = Path(folder) / "saved.tar", Path(folder) / "packed.tar"
        builder.podman("save", "--quiet", "--format=oci-archive", f"--output={saved}", identity, cache=cache)
        packed_bytes = _repack(saved, packed, full_name(name))
        one = Image(name=name, id=identity, fingerprint=fingerprint, packed_bytes=packed_bytes)
        _record().unlink(missing_ok=True)
        packed.rename(one.path)
        _record().write_text(json.dumps(asdict(one), indent=1))
    builder.trim(cache)
    return one


def _record() -> Path:
    return FOLDER / "image.json"


def _repack(saved: Path, packed: Path, name: str) -> int:
    """Write an archive again with the name where each program looks for it; returns the size of its layers."""
    with tarfile.open(saved) as source:
        members = {member.name: _read(source, member) for member in source.getmembers() if member.isfile()}
    index = json.loads(members["index.json"])
    digest = index["manifests"][0]["digest"]
    index["manifests"][0]["annotations"] = {_CONTAINERD_NAME: name, "org.opencontainers.image.ref.name": name}
    manifest = json.loads(members[_blob(digest)])
    layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
    members["index.json"] = json.dumps(index).encode()
    # docker's own statement of the same, for `docker load`
    members["manifest.json"] = json.dumps(
        [{"Config": _blob(manifest["config"]["digest"]), "RepoTags": [name], "Layers": layers}]
    ).encode()
    with tarfile.open(packed, "w") as target:
        for member, content in sorted(members.items()):
            entry = tarfile.TarInfo(member)
            entry.size, entry.mode = len(content), 0o644
            target.addfile(entry, io.BytesIO(content))
    return sum(len(members[layer]) for layer in layers)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file is not None else b""


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def read(one: Image) -> tuple[dict[str, Any], list[bytes]]:
    """Return an image's configuration and its layers' compressed bytes, lowest first; checks every digest."""
    with tarfile.open(one.path) as archive:
        members = {member.name: _read(archive, member) for member in archive.getmembers()}
    for name, content in members.items():
        if name.startswith("blobs/") and hashlib.sha256(content).hexdigest() != name.rpartition("/")[2]:
            raise ValueError(f"{one.path}: {name} is damaged")
    (entry,) = json.loads(members["manifest.json"])
    return json.loads(members[entry["Config"]]), [members[layer] for layer in entry["Layers"]]
