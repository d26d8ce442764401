"""Models how a release of containerd makes one configuration of a main file and its imports.

Files are read breadth first. What becomes of sections of different versions depends on the release:

- 1.x: the last file's section of a plugin replaces the others whole; the last version that is written counts for all
  files, and one above 2 keeps it from starting.
- 2.0 to 2.2: sections of one name are merged key by key. A file without a version, or of version 1, passes for one of
  the version in force so far, which is 3 at first: its CRI section is not migrated then, and is ignored. The last
  file's version counts for all: with 2 the older section is migrated into the newer one, key by key at the top and
  below `containerd`, so `runtimes` of the newer one replaces the older one's; with 3 the older section is ignored.
- 2.3: each file is migrated by itself, then all are merged. Until 2.3.4 a file of a higher version than the main
  file's keeps it from starting.

Source: containerd 1.7.35, 2.2.1 and 2.3.5, cmd/containerd/server/config LoadConfig and plugins/cri/runtime
migrateConfig; pull requests 12891 and 13939.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fairlead import errors
from fairlead.plan.engineconfig import tree
from fairlead.plan.engineconfig.model import HostFiles, Request
from fairlead.wire.text import toml

Document: TypeAlias = tuple[str, dict[str, Any]]
Release: TypeAlias = tuple[int, ...]

SECTIONS: Final = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
_OLD: Final = SECTIONS[2]
_NEW: Final = SECTIONS[3]
_MOST_STARS: Final = 2
"""Of an import's path; more would look at the whole disk."""
_EACH_MIGRATED: Final = (2, 3)
_CHECK_ENDED: Final = (2, 3, 5)
_NOT_RUNTIME: Final = frozenset(
    {
        *("sandbox_image", "registry", "image_decryption", "max_concurrent_downloads", "image_pull_progress_timeout"),
        *("image_pull_with_sync_fs", "stats_collect_period", "disable_tcp_service", "stream_server_address"),
        *("stream_server_port", "stream_idle_timeout", "enable_tls_streaming", "x509_key_pair_streaming", "cni"),
    }
)
"""Keys of the older section that other plugins have now, or that are migrated in a way of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """What containerd makes of its files."""

    section: dict[str, Any]
    """The CRI plugin's, as its runtime part reads it."""
    version: int
    """The format that the whole set is read as."""
    ignored: tuple[str, ...] = ()
    """Files that have a CRI section which this release does not read."""
    refused: str = ""
    """Why it does not start with these files; empty: it does."""


def load(config: str, host: HostFiles) -> tuple[Document, ...]:
    """Return the files in the order in which containerd reads them. Raises: ProtocolError: one cannot be read."""
    seen: set[str] = set()
    pending, found = [config], list[Document]()
    while pending:
        path = pending.pop(0)
        data = None if path in seen else host.read(path)
        if data is None:
            continue
        seen.add(path)
        document = toml.parse(data, path=path)
        found.append((path, document))
        for pattern in imports(document, path):
            pending += host.glob(pattern) if "*" in pattern else [pattern]
    return tuple(found)


def imports(document: Mapping[str, Any], path: str) -> list[str]:
    """Return the patterns that a file imports, absolute. Raises: ProtocolError (`FileMalformed`)."""
    found = tree.texts(document, "imports", where=path)
    paths = [posixpath.normpath(posixpath.join(posixpath.dirname(path), item)) for item in found]
    for one in paths:
        if sum("*" in part for part in one.split("/")) > _MOST_STARS:
            message = f"{path}: imports {one!r:.200} has * in more than {_MOST_STARS} places of the path"
            raise errors.ProtocolError(message, reason="FileMalformed", hint="name the folder")
    return paths


def find_missing(documents: Sequence[Document]) -> tuple[str, str] | None:
    """Return a file and a path that it imports by name and that is not there; None: all are."""
    paths = {path for path, _ in documents}
    for path, document in documents:
        for one in imports(document, path):
            if "*" not in one and one not in paths:
                return path, one
    return None


def version_of(path: str, document: Mapping[str, Any]) -> int:
    """Return the version that a file names; 0: none. Raises: ProtocolError (`VersionUnknown`)."""
    found = document.get("version", 0)
    if not isinstance(found, int) or isinstance(found, bool) or found not in {0, *SECTIONS}:
        message = f"{path}: version {found!r:.200} is not known (known: 1 to {max(SECTIONS)})"
        raise errors.ProtocolError(message, reason="VersionUnknown", hint="a newer Fairlead may know it")
    return found


def in_force(documents: Sequence[Document], release: Release) -> InForce:
    """Return what a release makes of files in its order of reading. Raises: ProtocolError: one cannot be meant."""
    if release < (2,):
        return _last_section(documents)
    return _migrated_as_one(documents) if release < _EACH_MIGRATED else _migrated_each(documents, release)


def _last_section(documents: Sequence[Document]) -> InForce:
    version, refused = 1, ""
    for path, document in documents:
        version = version_of(path, document) or version
        if version > 2 and not refused:
            refused = f"{path} has version {version}, and containerd 1.x knows 1 and 2"
    section, ignored = dict[str, Any](), []
    for path, document in documents:
        plugins = tree.table(document, "plugins", where=path)
        if SECTIONS[version] in plugins:
            section = tree.table(plugins, SECTIONS[version], where=path)
        elif SECTIONS[3 - min(version, 2)] in plugins:
            ignored.append(path)
    return InForce(section=copy.deepcopy(section), version=version, ignored=tuple(ignored), refused=refused)


def _sections(path: str, document: Mapping[str, Any], version: int) -> dict[str, dict[str, Any]]:
    """Return a file's sections of the CRI plugin, old and new, by the names they have from version 2 on."""
    plugins = tree.table(document, "plugins", where=path)
    found = {name: tree.table(plugins, name, where=path) for name in (_OLD, _NEW) if name in plugins}
    if version < 2 and SECTIONS[1] in plugins:
        found[_OLD] = tree.merged(found.get(_OLD, {}), tree.table(plugins, SECTIONS[1], where=path))
    return found


def _migrated_as_one(documents: Sequence[Document]) -> InForce:
    version, found, refused = 3, dict[str, dict[str, Any]](), ""
    for path, document in documents:
        said = version_of(path, document)
        version = said if said > 1 else version
        if said > 3:
            refused = f"{path} has version {said}, and this release knows 1 to 3"
        for name, section in _sections(path, document, said).items():
            found[name] = tree.merged(found.get(name, {}), section)
    if version == 2:
        return InForce(section=_migrated(found, "containerd"), version=2, refused=refused)
    ignored = tuple(path for path, one in documents if _OLD in _sections(path, one, version_of(path, one)))
    return InForce(section=found.get(_NEW, {}), version=version, ignored=ignored, refused=refused)


def _migrated_each(documents: Sequence[Document], release: Release) -> InForce:
    section, root, refused = dict[str, Any](), 0, ""
    for path, document in documents:
        said = version_of(path, document)
        root = root or said
        if said > root and release < _CHECK_ENDED:
            number = ".".join(map(str, release))
            main = documents[0][0]
            refused = f"{path} has version {said}, higher than {root} of {main}: containerd {number} does not start"
        found = _sections(path, document, said)
        section = tree.merged(section, _migrated(found, path) if said < 4 else found.get(_NEW, {}))
    return InForce(section=section, version=root or 3, refused=refused)


def _migrated(found: Mapping[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """Return the newer section, filled from the older one where it says nothing."""
    new, old = copy.deepcopy(found.get(_NEW, {})), found.get(_OLD, {})
    for key, value in old.items():
        if key not in _NOT_RUNTIME and key != "containerd":
            new.setdefault(key, copy.deepcopy(value))
    if "cni" in old:
        new["cni"] = {**tree.table(old, "cni", where=where), **tree.table(new, "cni", where=where)}
    if "containerd" in old:
        inner = tree.table(old, "containerd", where=where)
        new["containerd"] = {**copy.deepcopy(inner), **tree.table(new, "containerd", where=where)}
    return new


def covers(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether every value of the wanted tables is in the tables found."""
    for key, value in wanted.items():
        if isinstance(value, dict):
            inner = found.get(key, {})
            if not isinstance(inner, dict) or not covers(inner, value):
                return False
        elif key not in found or found[key] != value:
            return False
    return True


def judge_dump(
    dump: Mapping[str, Any], request: Request, handler_program: str, release: Release | None
) -> tuple[str, ...]:
    """Return what `containerd config dump` lacks of what is requested; nothing: all is there."""
    where = "containerd config dump"
    plugins = tree.table(dump, "plugins", where=where)
    name = _OLD if release is not None and release < (2,) else _NEW if _NEW in plugins else _OLD
    section = tree.table(plugins, name, where=where)
    found = []
    for one in request.names:
        options = tree.table(section, "containerd", "runtimes", one, "options", where=where)
        if handler_program not in {options.get("BinaryName"), options.get("Runtime")}:
            found.append(f'containerd itself finds no handler "{one}" of ours in its files (`containerd config dump`)')
    if request.enables_cdi and section.get("enable_cdi") is False:
        found.append("containerd itself finds enable_cdi off in its files (`containerd config dump`)")
    return tuple(found)
