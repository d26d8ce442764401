"""What is in an image, read from its layers: which package or library weighs what.

A file belongs to the Debian package whose list names it, or to the library whose wheel's record names it; a compiled
file to whom its source belongs. "packed" compresses each owner's files on their own, so the sum differs a little from
the layers, which are compressed as a whole.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from tools.image import build

_RECORDS: Final = "var/lib/dpkg/"
_LISTS: Final = "var/lib/dpkg/info/"
_LAYERS: Final = ("system", "libraries", "own")
_COMPILED: Final = re.compile(r"__pycache__/(.+)\.cpython-\d+\.pyc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one package or library has in the image."""

    layer: str
    owner: str
    files: int
    bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, folder or link of the image."""

    layer: str
    path: str
    """Without a leading slash."""
    member: tarfile.TarInfo
    content: bytes


def entries(one: build.Image) -> Iterator[Entry]:
    """Yield everything in the image, lowest layer first."""
    for layer, packed in zip(_LAYERS, build.read(one)[1], strict=True):
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                path = member.name.removeprefix("./").rstrip("/")
                yield Entry(layer=layer, path=path, member=member, content=file.read() if file else b"")


def parts(one: build.Image) -> list[Part]:
    """Return what each owner has, by layer, the largest first."""
    found = [entry for entry in entries(one) if entry.member.isfile()]
    owners = _owners(found)
    sums: dict[tuple[str, str], list[bytes]] = {}
    for entry in found:
        source = _COMPILED.sub(r"\1.py", entry.path)
        owner = owners.get(source, "lists of packages" if source.startswith(_RECORDS) else "made here")
        sums.setdefault((entry.layer, owner), []).append(entry.content)
    unsorted = (
        Part(
            layer=layer,
            owner=owner,
            files=len(contents),
            bytes=sum(map(len, contents)),
            packed_bytes=len(zlib.compress(b"".join(contents), 6)),
        )
        for (layer, owner), contents in sums.items()
    )
    return sorted(unsorted, key=lambda part: (_LAYERS.index(part.layer), -part.packed_bytes))


def _owners(found: list[Entry]) -> Mapping[str, str]:
    """Return who owns which path."""
    owners: dict[str, str] = {}
    for entry in found:
        path = PurePosixPath(entry.path)
        if entry.path.startswith(_LISTS):
            owners.update({line.lstrip("/"): path.stem for line in entry.content.decode().splitlines()})
        elif path.name == "RECORD" and path.parent.suffix == ".dist-info":
            name = path.parent.stem.rsplit("-", 1)[0]
            rows = csv.reader(entry.content.decode().splitlines())
            owners.update({_joined(path.parent.parent, row[0]): name for row in rows})
    return owners


def _joined(folder: PurePosixPath, name: str) -> str:
    while name.startswith("../"):
        folder, name = folder.parent, name.removeprefix("../")
    return str(folder / name)


def table(one: build.Image, *, least_bytes: int = 100_000) -> Iterator[str]:
    """Yield lines of a Markdown table; what is smaller than `least_bytes` packed is summed up in one row a layer."""
    yield "| layer | what | files | MB | MB packed |"
    yield "|---|---|---|---|---|"
    every = parts(one)
    for layer in _LAYERS:
        mine = [part for part in every if part.layer == layer]
        large = [part for part in mine if part.packed_bytes >= least_bytes]
        for part in large:
            yield _row(layer, part.owner, [part])
        if small := [part for part in mine if part.packed_bytes < least_bytes]:
            yield _row(layer, f"{len(small)} smaller ones", small)
        yield _row(layer, "**all**", mine)
    yield _row("", "**the image**", every)


def _row(layer: str, what: str, of: list[Part]) -> str:
    size, packed = sum(part.bytes for part in of) / 1e6, sum(part.packed_bytes for part in of) / 1e6
    return f"| {layer} | {what} | {sum(part.files for part in of)} | {size:.1f} | {packed:.1f} |"
